package failpoint_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/trtship/trtship/internal/failpoint"
)

var (
	one = failpoint.New("test.one")
	two = failpoint.New("test.two")
)

func TestArm(t *testing.T) {
	tests := map[string]struct {
		spec string
		hits []error // of test.one
		bad  string
	}{
		"nothing":               {"", []error{nil, nil}, ""},
		"every hit":             {"test.one:enospc", []error{syscall.ENOSPC, syscall.ENOSPC}, ""},
		"from the third hit":    {"test.one:eio:2", []error{nil, nil, syscall.EIO, syscall.EIO}, ""},
		"another point":         {"test.two:eacces", []error{nil}, ""},
		"two points":            {"test.two:eacces,test.one:erofs", []error{syscall.EROFS}, ""},
		"no action":             {"test.one", nil, "want name:action"},
		"an unknown action":     {"test.one:explode", nil, `unknown action "explode"`},
		"an unknown point":      {"test.three:kill", nil, "none of that name"},
		"a number that is none": {"test.one:eio:x", nil, "not a number"},
		"a number below zero":   {"test.one:eio:-1", nil, "not a number"},
		"too many fields":       {"test.one:eio:1:2", nil, "want name:action"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(failpoint.Disarm)
			err := failpoint.Arm(tt.spec)
			if (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Fatalf("error %v, want %q", err, tt.bad)
			}
			for i, want := range tt.hits {
				if got := one.Hit(); !errors.Is(got, want) || (want == nil) != (got == nil) {
					t.Errorf("hit %d: %v, want %v", i+1, got, want)
				}
			}
		})
	}
}

func TestCallRunsOnce(t *testing.T) {
	n := 0
	disarm := failpoint.Call("test.two", func() { n++ })
	for range 3 {
		if err := two.Hit(); err != nil {
			t.Error(err)
		}
	}
	disarm()
	if n != 1 {
		t.Errorf("ran %d times", n)
	}
}

func TestNames(t *testing.T) {
	if names := failpoint.Names(); !slices.Contains(names, "test.one") || !slices.IsSorted(names) || one.Name() != "test.one" {
		t.Errorf("names %v", names)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name can be taken twice")
		}
	}()
	failpoint.New("test.one")
}
