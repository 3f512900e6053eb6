package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/report"
)

// observer shows how a run goes: bars on a terminal, plain lines elsewhere.
func (a *app) observer() observer {
	if a.json && !a.terminal(a.io.Stderr) {
		return &quiet{a: a}
	}
	if a.terminal(a.io.Stderr) && a.io.Getenv("CI") == "" && a.io.Getenv("TERM") != "dumb" {
		return &bars{a: a, out: a.io.Stderr}
	}
	return &lines{a: a}
}

// observer is one that has to be ended.
type observer interface {
	pipeline.Observer
	// Close waits until everything is drawn.
	Close()
	// Dir returns the run's folder, once it is known.
	Dir() string
}

// quiet remembers the run's folder and says nothing.
type quiet struct {
	pipeline.Silent
	a   *app
	dir string
}

// RunStarted remembers the folder.
func (q *quiet) RunStarted(_, dir string) { q.dir = dir }

// Note logs.
func (q *quiet) Note(text string) { q.a.log.Info(text) }

// Close does nothing.
func (q *quiet) Close() {}

// Dir returns the run's folder.
func (q *quiet) Dir() string { return q.dir }

// lines writes one line when a stage starts and one when it ends. A measurement by
// hand begins without a run, and may report progress first.
type lines struct {
	a    *app
	dir  string
	info map[string]pipeline.StageInfo
	last map[string]time.Time
	mu   sync.Mutex
}

// RunStarted names the run.
func (l *lines) RunStarted(id, dir string) {
	l.dir = dir
	if dir != "" {
		l.a.say("run %s in %s", id, l.a.rel(dir))
	}
}

// StageStarted says what begins.
func (l *lines) StageStarted(s pipeline.StageInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.info == nil {
		l.info = map[string]pipeline.StageInfo{}
	}
	l.info[s.Name] = s
	l.spoke(s.Name)
	l.a.say("%s %s: %s", counter(s), s.Name, s.Title)
}

// StageProgress writes a line every ten seconds.
func (l *lines) StageProgress(name string, done, total int64, label string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last[name]) < 10*time.Second {
		return
	}
	l.spoke(name)
	label = oneLine(label)
	if total > 0 {
		l.a.say("%s %s: %s %d/%d", counter(l.info[name]), name, label, done, total)
		return
	}
	l.a.say("%s %s: %s", counter(l.info[name]), name, label)
}

// spoke remembers when a stage was last told of.
func (l *lines) spoke(name string) {
	if l.last == nil {
		l.last = map[string]time.Time{}
	}
	l.last[name] = time.Now()
}

// StageFinished says what became of it.
func (l *lines) StageFinished(s report.Stage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, ok := l.info[s.Name]; ok {
		l.a.say("%s %s: %s", counter(info), s.Name, outcome(s))
	}
}

// Note writes a line.
func (l *lines) Note(text string) { l.a.say("note: %s", text) }

// Close does nothing.
func (l *lines) Close() {}

// Dir returns the run's folder.
func (l *lines) Dir() string { return l.dir }

func counter(s pipeline.StageInfo) string { return fmt.Sprintf("[%d/%d]", s.Index+1, s.Total) }

// oneLine takes what moves a terminal's cursor out of a text that may come from
// a model or a tool.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// outcome is a stage's end in a few words.
func outcome(s report.Stage) string {
	text := fmt.Sprintf("%s (%.1f s)", s.Verdict, s.Seconds)
	if s.Cached {
		text = fmt.Sprintf("%s, reused (%.1f s)", s.Verdict, s.Seconds)
	}
	if s.Reason != "" {
		text += ": " + oneLine(s.Reason)
	}
	return text
}

// bars draws one bar for the stage that runs.
type bars struct {
	a        *app
	out      io.Writer
	dir      string
	mu       sync.Mutex
	progress *mpb.Progress
	bar      *mpb.Bar
	info     pipeline.StageInfo
	label    string
}

// RunStarted names the run.
func (b *bars) RunStarted(id, dir string) {
	b.dir = dir
	if dir != "" {
		b.a.say("run %s in %s", id, b.a.rel(dir))
	}
}

// StageStarted draws a bar of unknown length.
func (b *bars) StageStarted(s pipeline.StageInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.info, b.label = s, s.Title
	b.progress = mpb.New(mpb.WithOutput(b.out), mpb.WithWidth(32), mpb.WithAutoRefresh())
	b.bar = b.progress.New(0, mpb.BarStyle().Rbound("]"),
		mpb.PrependDecorators(decor.Name(counter(s)+" "+s.Name+" ")),
		mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_MMSS), decor.Any(func(decor.Statistics) string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return " " + b.label
		})),
		mpb.BarRemoveOnComplete(),
	)
}

// StageProgress moves the bar.
func (b *bars) StageProgress(_ string, done, total int64, label string) {
	b.mu.Lock()
	bar := b.bar
	b.label = oneLine(label)
	b.mu.Unlock()
	if bar == nil {
		return
	}
	if total > 0 {
		bar.SetTotal(max(total, done)+1, false) // the end comes with StageFinished
	}
	bar.SetCurrent(done)
}

// StageFinished replaces the bar with a line.
func (b *bars) StageFinished(s report.Stage) {
	b.mu.Lock()
	bar, progress := b.bar, b.progress
	b.bar, b.progress = nil, nil
	b.mu.Unlock()
	if bar == nil {
		return
	}
	bar.Abort(true)
	progress.Wait()
	b.a.say("%s %s: %s", counter(b.info), s.Name, outcome(s))
}

// Note writes a line.
func (b *bars) Note(text string) { b.a.log.Info(text) }

// Close removes a bar that is left.
func (b *bars) Close() {
	b.mu.Lock()
	bar, progress := b.bar, b.progress
	b.bar = nil
	b.mu.Unlock()
	if bar != nil {
		bar.Abort(true)
		progress.Wait()
	}
}

// Dir returns the run's folder.
func (b *bars) Dir() string { return b.dir }
