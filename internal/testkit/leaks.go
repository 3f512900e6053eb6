package testkit

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Main runs the tests of a package, then cleanup, and fails if a goroutine or a
// process is left that was not there before. Call it last in TestMain, behind
// ort.RunChildIfAsked where the package needs that.
func Main(m interface{ Run() int }, cleanup ...func()) {
	os.Exit(Checked{m, cleanup}.Run())
}

// Checked is tests that are followed by a look for what they left, for mains of
// others that take anything that runs.
type Checked struct {
	Tests   interface{ Run() int }
	Cleanup []func()
}

// Run runs the tests and returns the exit status.
func (c Checked) Run() int {
	// Orphans of children become ours, so that they are found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "look for processes that are left:", err)
		return 1
	}
	before, err := descendants()
	code := c.Tests.Run()
	for _, f := range c.Cleanup {
		f()
	}
	if fuzzing() {
		return code // the fuzzer's own processes come and go
	}
	if err == nil {
		err = left(before)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" && f.Value.String() != "false" {
			return true
		}
	}
	return false
}

// left waits a moment for what is on its way out, and says what stays.
func left(before map[int]string) error {
	if t, ok := http.DefaultTransport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	var names []string
	for range 250 {
		now, err := descendants()
		if err != nil {
			return err
		}
		names = names[:0]
		for pid, cmd := range now {
			if _, ok := before[pid]; !ok {
				names = append(names, strconv.Itoa(pid)+" "+cmd)
			}
		}
		if len(names) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(names) > 0 {
		sort.Strings(names)
		return fmt.Errorf("processes outlive the tests of this package:\n  %s", strings.Join(names, "\n  "))
	}
	// The thread that starts all children stays for ever.
	return goleak.Find(goleak.IgnoreAnyFunction("github.com/trtship/trtship/internal/proc.spawn.func1.1"))
}
