package testkit

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// NoChildren fails the test if, at its end, this process has children that it
// did not have now, or orphans of them that carry a mark in their environment.
// It waits a moment for those that are on their way out.
func NoChildren(t testing.TB) {
	t.Helper()
	before := children(t)
	t.Cleanup(func() {
		var left []string
		for range 100 {
			left = left[:0]
			for pid, cmd := range children(t) {
				if _, ok := before[pid]; !ok {
					left = append(left, strconv.Itoa(pid)+" "+cmd)
				}
			}
			if len(left) == 0 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("processes outlive the test: %s", strings.Join(left, "; "))
	})
}

func children(t testing.TB) map[int]string {
	t.Helper()
	out, err := descendants()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// descendants lists the living descendants of this process with their command
// lines.
func descendants() (map[int]string, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parent, state := map[int]int{}, map[int]string{}
	for _, s := range stats {
		text, err := os.ReadFile(s)
		if err != nil {
			continue // it ended
		}
		// pid (name) state ppid: the name may hold anything.
		line := string(text)
		end := strings.LastIndexByte(line, ')')
		fields := strings.Fields(line[end+1:])
		pid, _ := strconv.Atoi(strings.Fields(line)[0])
		if len(fields) > 1 {
			parent[pid], _ = strconv.Atoi(fields[1])
			state[pid] = fields[0]
		}
	}
	out := map[int]string{}
	self := os.Getpid()
	for pid := range parent {
		if pid == self || state[pid] == "Z" {
			continue
		}
		for p, n := parent[pid], 0; p > 1 && n < 64; p, n = parent[p], n+1 {
			if p == self {
				cmd, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
				out[pid] = strings.ReplaceAll(string(cmd), "\x00", " ")
				break
			}
		}
	}
	return out, nil
}

// Alive reports whether a process exists and is no zombie.
func Alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	end := strings.LastIndexByte(string(text), ')')
	fields := strings.Fields(string(text)[end+1:])
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}
