package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/report"
)

// pty is a terminal: what is written to user comes out of what was read.
type pty struct {
	master, user *os.File
	mu           sync.Mutex
	text         bytes.Buffer
	done         chan struct{}
}

func openPTY(t *testing.T, columns int) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &pty{master: master, user: user, done: make(chan struct{})}
	p.resize(t, columns)
	go func() {
		defer close(p.done)
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.text.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

func (p *pty) resize(t *testing.T, columns int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
}

// end returns everything that was written.
func (p *pty) end(t *testing.T) string {
	t.Helper()
	_ = p.user.Close()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Error("the terminal does not end")
	}
	_ = p.master.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

var control = regexp.MustCompile(`^\x1b\[([0-9;?]*)([A-Za-z])`)

// screen is what a terminal of a width shows in the end, line by line.
func screen(t *testing.T, text string, columns int) []string {
	t.Helper()
	lines := [][]rune{{}}
	row, col := 0, 0
	for len(text) > 0 {
		if m := control.FindStringSubmatch(text); m != nil {
			text = text[len(m[0]):]
			n, _ := strconv.Atoi(m[1])
			switch m[2] {
			case "A":
				row = max(0, row-max(n, 1))
			case "J": // from the cursor to the end
				lines = append(lines[:row:row], lines[row][:min(col, len(lines[row]))])
			case "K":
				lines[row] = lines[row][:min(col, len(lines[row]))]
			case "m", "h", "l":
			default:
				t.Errorf("the control sequence %q is not known", m[0])
			}
			continue
		}
		r := []rune(text[:min(len(text), 4)])[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			col = 0
		case '\n':
			row++
		default:
			if col == columns {
				row, col = row+1, 0
			}
			for len(lines) <= row {
				lines = append(lines, nil)
			}
			for len(lines[row]) <= col {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][col] = r
			col++
		}
		for len(lines) <= row {
			lines = append(lines, nil)
		}
	}
	var out []string
	for _, l := range lines {
		out = append(out, strings.TrimRight(string(l), " "))
	}
	return out
}

// TestBarsLeaveACleanTerminal draws bars on terminals of several widths, with a
// label longer than a line, while the width changes.
func TestBarsLeaveACleanTerminal(t *testing.T) {
	for name, tc := range map[string]struct {
		columns, then int
		label         string
	}{
		"wide":                {120, 0, "10 of 20"},
		"narrow":              {24, 0, "a label that is far too long for such a terminal"},
		"very narrow":         {8, 0, "label"},
		"made narrower":       {100, 40, "a label that fits into the first width and not into the next"},
		"made wider":          {40, 120, "a label that is longer than forty columns, at least a little"},
		"a label with breaks": {80, 0, "one\ntwo\rthree\x1b[2J\x1b[31mred"},
		"wide characters":     {30, 0, "日本語のラベルはとても長いのです 日本語"},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPTY(t, tc.columns)
			a := &app{io: IO{Stdout: p.user, Stderr: p.user, Getenv: func(string) string { return "" }}}
			o := a.observer()
			if _, ok := o.(*bars); !ok {
				t.Fatalf("the observer of a terminal is %T", o)
			}
			for i, stage := range []string{"inspect", "export"} {
				o.StageStarted(pipeline.StageInfo{Name: stage, Title: "Title", Index: i, Total: 2})
				for n := range int64(20) {
					o.StageProgress(stage, n, 20, tc.label)
					time.Sleep(15 * time.Millisecond) // bars are drawn eight times a second
					if n == 10 && tc.then > 0 {
						p.resize(t, tc.then)
					}
				}
				o.StageFinished(report.Stage{Name: stage, Verdict: report.Pass, Seconds: 1})
			}
			o.StageStarted(pipeline.StageInfo{Name: "cut", Title: "Off", Index: 1, Total: 2})
			o.Close()
			text := p.end(t)
			if !strings.Contains(text, "\x1b[") {
				t.Error("nothing was drawn")
			}
			if tc.then == 0 && tc.columns > 24 { // what a terminal does with old lines when it changes differs
				got := strings.TrimSpace(strings.Join(screen(t, text, tc.columns), "\n"))
				if want := "[1/2] inspect: pass (1.0 s)\n[2/2] export: pass (1.0 s)"; got != want {
					t.Errorf("the terminal shows\n%s\nwant\n%s\nfrom %q", got, want, text)
				}
			}
			if strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\x1b[31m") {
				t.Error("a label reached the terminal's controls")
			}
			if hidden, shown := strings.Count(text, "\x1b[?25l"), strings.Count(text, "\x1b[?25h"); hidden != shown {
				t.Errorf("the cursor was hidden %d times and shown %d times", hidden, shown)
			}
		})
	}
}

// TestARunOnATerminal runs the program with a terminal for stderr and stdout.
func TestARunOnATerminal(t *testing.T) {
	config := smallConfig(t)
	for name, tc := range map[string]struct {
		env          map[string]string
		bars, colour bool
	}{
		"a terminal": {nil, true, true},
		"NO_COLOR":   {map[string]string{"NO_COLOR": "1"}, true, false},
		"TERM=dumb":  {map[string]string{"TERM": "dumb"}, false, false},
		"CI":         {map[string]string{"CI": "true"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			delete(b.env, "NO_COLOR")
			for k, v := range tc.env {
				b.env[k] = v
			}
			b.env["TRTSHIP_STORE"] = filepath.Join(t.TempDir(), "store")
			p := openPTY(t, 100)
			code := Main(t.Context(), []string{"run", config, "--until", "inspect"}, IO{
				Stdin: strings.NewReader(""), Stdout: p.user, Stderr: p.user, Getenv: func(name string) string { return b.env[name] },
				Environ: func() []string { return nil },
			})
			text := p.end(t)
			if code != int(failure.OK) {
				t.Fatalf("exit %d: %s", code, text)
			}
			if got := strings.Contains(text, "\x1b[31") || strings.Contains(text, "\x1b[32"); got != tc.colour {
				t.Errorf("colours %t, want %t: %q", got, tc.colour, text)
			}
			if !tc.bars && strings.Contains(text, "\x1b[1A") {
				t.Errorf("bars were drawn: %q", text)
			}
			shown := strings.Join(screen(t, text, 100), "\n")
			for _, want := range []string{"[1/", "inspect: pass"} {
				if !strings.Contains(shown, want) {
					t.Errorf("no %q on\n%s", want, shown)
				}
			}
		})
	}
}
