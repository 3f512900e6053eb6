package worker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/worker"
)

// scripted is a child that does what a shell script says instead of Python.
func scripted(t *testing.T, change func(*worker.Options), lines ...string) *worker.Worker {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nread line <&3\n"+strings.Join(lines, "\n")+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o := worker.Options{Python: path, Subject: "m", Timeout: time.Minute}
	if change != nil {
		change(&o)
	}
	w, err := worker.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func TestAnErrorKnowsWhatTheCallHadReached(t *testing.T) {
	const parsed, dies, refuses = `echo '{"id":1,"reached":"parsed"}' >&4`, `exit 5`, `echo '{"id":1,"error":{"code":7,"kind":"build","message":"no"}}' >&4`
	for name, c := range map[string]struct {
		lines []string
		want  bool
	}{
		"a crash behind it":    {[]string{parsed, dies}, true},
		"a crash before it":    {[]string{dies}, false},
		"a refusal behind it":  {[]string{parsed, refuses}, true},
		"a refusal before it":  {[]string{refuses}, false},
		"a crash behind words": {[]string{`echo '{"id":1,"progress":{"done":1,"total":2,"label":"parsed"}}' >&4`, dies}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := scripted(t, nil, c.lines...).Call("trt.build", struct{}{}, nil)
			if err == nil || worker.Reached(err, "parsed") != c.want || worker.Reached(err, "other") {
				t.Errorf("%v: reached %v, want %v", err, worker.Reached(err, "parsed"), c.want)
			}
		})
	}
	if worker.Reached(errors.New("x"), "parsed") {
		t.Error("an error of something else has reached it")
	}
	w := scripted(t, nil, parsed, `echo '{"id":1,"result":{}}' >&4`, `read line <&3`, `exit 5`)
	if err := w.Call("trt.build", struct{}{}, &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Call("trt.build", struct{}{}, nil); err == nil || worker.Reached(err, "parsed") {
		t.Errorf("%v: the call before counts", err)
	}
}

func TestAChildOutOfTimeNamesTheSetting(t *testing.T) {
	w := scripted(t, func(o *worker.Options) {
		o.Timeout, o.TimeoutSetting = 200*time.Millisecond, "tensorrt.build_timeout_s"
	}, "exec sleep 100")
	err := w.Call("trt.build", struct{}{}, nil)
	crash, ok := errors.AsType[*worker.Crash](err)
	if !ok || !errors.Is(err, context.DeadlineExceeded) || !strings.HasSuffix(crash.Reason(), "out of time after 200ms (tensorrt.build_timeout_s)") {
		t.Fatalf("%v, want the time and the setting", err)
	}
	if c, ok := worker.BrokenCheck("build/engine-built", err); !ok || c.Hint != "raise tensorrt.build_timeout_s" {
		t.Errorf("check %+v", c)
	}
}

func TestACrashAsTheEndOfACommandHasTheCodeOfWhatWasAsked(t *testing.T) {
	for method, want := range map[string]failure.Code{
		"trt.build": failure.Build, "trt.open": failure.Build, "trt.infer": failure.Build, "trt.compare": failure.Benchmark, "trt.benchmark": failure.Benchmark,
		"torch.export": failure.Export, "torch.inspect": failure.Model, "torch.forward": failure.Model,
	} {
		c := &worker.Crash{Method: method, Err: errors.New("crashed"), Tail: "last words\n"}
		f := c.Failure(c.Code())
		if f.Code != want || f.Hint == "" || len(f.Details) != 1 || f.Details[0].Value != "last words" || !errors.Is(f, error(c)) {
			t.Errorf("%s: %+v, want code %d", method, f, want)
		}
	}
}
