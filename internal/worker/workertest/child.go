// Package workertest has a child of package worker that goes wrong at one of its
// messages. The test binary is the child: it speaks the protocol as the Python
// half does, and needs neither Python nor a GPU.
package workertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/worker"
)

const variable = "WORKERTEST_FAULT"

// Faults are the ways in which the child goes wrong.
var Faults = []string{
	"killed", "killed within a line", "exit 0", "exit 3", "exit 0 within a line", "garbage", "another id", "two answers", "no answer",
	"null", "no object", "an error of nothing", "huge", "silence", "closed", "twice",
}

// Slow says which faults take a time limit, or much to read. Tests that are not
// recorded try them at a few messages only.
func Slow(fault string) bool {
	return os.Getenv("TRTSHIP_RECORD_FAULTS") == "" && (fault == "silence" || fault == "closed" || fault == "huge")
}

// Options start this test binary as the child. It goes wrong in a way of Faults
// at message at, from 0; each request is answered by two messages, of which the
// first is progress. Negative: never.
func Options(t testing.TB, fault string, at int) worker.Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return worker.Options{Python: self, Subject: "m", Env: []string{variable + "=" + strconv.Itoa(at) + " " + fault}, Timeout: time.Second}
}

// RunChildIfAsked turns the process into the child, and ends it, if Options
// started it. It is the first thing in TestMain. answer gives the results.
func RunChildIfAsked(answer func(method string, params json.RawMessage) (any, error)) {
	at, fault, ok := strings.Cut(os.Getenv(variable), " ")
	if !ok || len(os.Args) < 2 || os.Args[1] != "-I" {
		return
	}
	n, _ := strconv.Atoi(at)
	c := &child{fault: fault, at: n, out: os.NewFile(4, "replies")}
	in := bufio.NewReader(os.NewFile(3, "requests"))
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var q struct {
			ID     int64           `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
		}
		if err := json.Unmarshal(line, &q); err != nil {
			os.Exit(9)
		}
		result, err := answer(q.Method, q.Params)
		if err != nil {
			result = map[string]string{"refused": err.Error()}
		}
		b, err := json.Marshal(result)
		if err != nil {
			os.Exit(9)
		}
		c.say(q.ID, fmt.Sprintf(`{"id":%d,"progress":{"done":1,"total":2,"label":"x"}}`, q.ID))
		c.say(q.ID, fmt.Sprintf(`{"id":%d,"result":%s}`, q.ID, b))
	}
}

type child struct {
	fault string
	at    int
	sent  int
	out   *os.File
}

func (c *child) write(text string) { _, _ = c.out.WriteString(text) }

// say sends one message, or does what goes wrong in its place.
func (c *child) say(id int64, line string) {
	c.sent++
	if c.sent-1 != c.at {
		c.write(line + "\n")
		return
	}
	half := line[:len(line)/2]
	switch c.fault {
	case "killed":
		die()
	case "killed within a line":
		c.write(half)
		die()
	case "exit 0":
		os.Exit(0)
	case "exit 3":
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(3)
	case "exit 0 within a line":
		c.write(half)
		os.Exit(0)
	case "garbage":
		c.write("\xff\x00\x1b[31m nonsense\n")
	case "another id":
		c.write(strings.Replace(line, fmt.Sprintf(`"id":%d`, id), `"id":4711`, 1) + "\n")
	case "two answers":
		c.write(fmt.Sprintf(`{"id":%d,"result":{},"error":{"code":4,"message":"x"}}`+"\n", id))
	case "no answer":
		c.write(fmt.Sprintf(`{"id":%d}`+"\n", id))
	case "null":
		c.write("null\n")
	case "no object":
		c.write(fmt.Sprintf(`{"id":%d,"result":[1,"x"]}`+"\n", id))
	case "an error of nothing":
		c.write(fmt.Sprintf(`{"id":%d,"error":{}}`+"\n", id))
	case "huge":
		c.write(fmt.Sprintf(`{"id":%d,"result":"`, id))
		block := strings.Repeat("x", 1<<20)
		for range 80 {
			c.write(block)
		}
		c.write("\"}\n")
	case "silence":
		time.Sleep(time.Hour)
	case "closed":
		_ = c.out.Close()
		time.Sleep(time.Hour)
	case "twice":
		c.write(line + "\n" + line + "\n")
	}
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	time.Sleep(time.Hour)
}
