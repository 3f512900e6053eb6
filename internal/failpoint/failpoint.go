// Package failpoint names the places where the program can be made to fail or
// to die, so that tests can prove what happens then. A point that is not armed
// costs one atomic load.
//
// Points are package variables, made by New, so that Names lists every point of
// the program:
//
//	var published = failpoint.New("store.publish.renamed")
//	...
//	if err := published.Hit(); err != nil { return err }
//
// Arm takes its value from the command (the variable TRTSHIP_FAILPOINT), and
// from tests directly.
package failpoint

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Point is one place.
type Point struct {
	name  string
	hits  atomic.Int64
	armed atomic.Pointer[action]
}

type action struct {
	err   error
	kill  bool
	after int64 // hits to let pass
	once  bool
	fn    func()
}

var (
	mu     sync.Mutex
	points = map[string]*Point{}
)

// New registers a point. Names are dotted: package, operation, step. A name
// that is taken is a programming error.
func New(name string) *Point {
	mu.Lock()
	defer mu.Unlock()
	if points[name] != nil {
		panic("failpoint " + name + " is registered twice")
	}
	p := &Point{name: name}
	points[name] = p
	return p
}

// Names lists all points in order.
func Names() []string {
	mu.Lock()
	defer mu.Unlock()
	names := make([]string, 0, len(points))
	for n := range points {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Error is what an armed point returns.
type Error struct {
	Point string
	Err   error
}

func (e *Error) Error() string { return "failpoint " + e.Point + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

var errnos = map[string]error{
	"enospc": syscall.ENOSPC,
	"eio":    syscall.EIO,
	"eacces": syscall.EACCES,
	"erofs":  syscall.EROFS,
	"emfile": syscall.EMFILE,
	"epipe":  syscall.EPIPE,
}

// Actions lists what a point can be armed with.
func Actions() []string {
	out := []string{"kill"}
	for a := range errnos {
		out = append(out, a)
	}
	sort.Strings(out)
	return out
}

// Arm arms points: "name:action" with commas between, action one of Actions,
// and ":n" behind it to let n hits pass first. An empty spec arms nothing.
func Arm(spec string) error {
	if spec == "" {
		return nil
	}
	for _, one := range strings.Split(spec, ",") {
		fields := strings.Split(one, ":")
		if len(fields) < 2 || len(fields) > 3 {
			return fmt.Errorf("failpoint %q: want name:action or name:action:n", one)
		}
		a := &action{kill: fields[1] == "kill", err: errnos[fields[1]]}
		if !a.kill && a.err == nil {
			return fmt.Errorf("failpoint %q: unknown action %q (have %s)", one, fields[1], strings.Join(Actions(), ", "))
		}
		if len(fields) == 3 {
			n, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("failpoint %q: %q is not a number of hits", one, fields[2])
			}
			a.after = n
		}
		mu.Lock()
		p := points[fields[0]]
		mu.Unlock()
		if p == nil {
			return fmt.Errorf("failpoint %q: there is none of that name", fields[0])
		}
		p.arm(a)
	}
	return nil
}

// Call makes the next hit of a point run fn, once: for tests that need two
// things to happen in one order. It returns a function that disarms the point.
func Call(name string, fn func()) (disarm func()) {
	mu.Lock()
	p := points[name]
	mu.Unlock()
	if p == nil {
		panic("failpoint " + name + " is not registered")
	}
	p.arm(&action{fn: fn, once: true})
	return func() { p.armed.Store(nil) }
}

func (p *Point) arm(a *action) {
	p.hits.Store(0)
	p.armed.Store(a)
}

// Disarm disarms every point.
func Disarm() {
	mu.Lock()
	defer mu.Unlock()
	for _, p := range points {
		p.armed.Store(nil)
	}
}

// Name returns the point's name.
func (p *Point) Name() string { return p.name }

// Hit returns nil unless the point is armed; then it returns an *Error, or ends
// the process as kill -9 would.
func (p *Point) Hit() error {
	a := p.armed.Load()
	if a == nil {
		return nil
	}
	if p.hits.Add(1) <= a.after {
		return nil
	}
	if a.once && !p.armed.CompareAndSwap(a, nil) {
		return nil
	}
	switch {
	case a.fn != nil:
		a.fn()
		return nil
	case a.kill:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // SIGKILL arrives before anything else can happen
	}
	return &Error{Point: p.name, Err: a.err}
}
