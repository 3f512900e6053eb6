package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/load"
)

// Setting is one point of the search.
type Setting struct {
	Instances int   `json:"instances" yaml:"-"`
	MaxBatch  int   `json:"max_batch_size" yaml:"-"`
	DelayUS   int64 `json:"max_queue_delay_us" yaml:"-"` // -1: no dynamic batching
	Load      int   `json:"concurrency" yaml:"-"`        // requests at a time
}

func (s Setting) String() string {
	d := fmt.Sprintf("delay %d us", s.DelayUS)
	if s.DelayUS < 0 {
		d = "no dynamic batching"
	}
	return fmt.Sprintf("%d instances, batch %d, %s, %d requests at a time", s.Instances, s.MaxBatch, d, s.Load)
}

// Trial is a measured setting.
type Trial struct {
	Setting Setting `json:"setting"`
	Rows    float64 `json:"rows_per_second"`
	P99     float64 `json:"p99_ms"`
	P50     float64 `json:"p50_ms"`
	Errors  int     `json:"errors"`
	Stable  bool    `json:"stable"`
	Failed  string  `json:"failed,omitempty"` // why it could not be measured
}

// TuneOptions says what to search.
type TuneOptions struct {
	Instances []int
	MaxBatch  []int
	DelayUS   []int64
	Loads     []int
	P99       float64 // latency budget in milliseconds; 0 is none
	// Key says what the trials are of (model digest, server, device): a journal
	// of another key is not used.
	Key string
	// Journal is a file that keeps every trial, so that a search goes on where it
	// was cut off; empty keeps none.
	Journal string
	// Measure starts a server or reloads the model with a setting and measures.
	Measure  func(ctx context.Context, s Setting) (load.Result, error)
	Progress func(done, total int64, label string)
}

// TuneResult is the outcome of a search.
type TuneResult struct {
	Best   *Trial  `json:"best"`   // nil if no trial keeps the budget
	Trials []Trial `json:"trials"` // in the order of the search
	Reused int     `json:"reused"` // trials that a journal had
	Budget float64 `json:"p99_budget_ms"`
}

// journal is what lies in the file.
type journal struct {
	Format string  `json:"format"`
	Key    string  `json:"key"`
	Trials []Trial `json:"trials"`
}

const journalFormat = "trtship-tune/1"

// Tune measures the settings and returns the one with the most rows a second
// whose p99 keeps the budget. It starts from the corner of least load, walks
// along one setting at a time from the best so far, and stops along a line when
// it gets worse: few of the combinations are measured.
func Tune(ctx context.Context, o TuneOptions) (TuneResult, error) {
	if len(o.Instances) == 0 || len(o.MaxBatch) == 0 || len(o.DelayUS) == 0 || len(o.Loads) == 0 {
		return TuneResult{}, failure.New(failure.Usage, "tune: nothing to try in one of instances, batch sizes, delays and loads")
	}
	t := &tuner{o: o, known: map[Setting]Trial{}}
	if err := t.resume(); err != nil {
		return TuneResult{}, err
	}
	for _, list := range [][]int{o.Instances, o.MaxBatch, o.Loads} {
		sort.Ints(list)
	}
	slices.Sort(o.DelayUS)
	best := Setting{o.Instances[0], o.MaxBatch[0], o.DelayUS[0], o.Loads[0]}
	if _, err := t.try(ctx, best); err != nil {
		return t.result(), err
	}
	for improved := true; improved; {
		improved = false
		for axis := range axes {
			better, err := t.walk(ctx, best, axis)
			if err != nil {
				return t.result(), err
			}
			if better != best {
				best, improved = better, true
			}
		}
	}
	return t.result(), nil
}

// axes is the number of things that are varied.
const axes = 4

type tuner struct {
	o      TuneOptions
	known  map[Setting]Trial
	order  []Trial
	reused int
	old    map[Setting]Trial
}

// values lists the settings along an axis through s.
func (t *tuner) values(s Setting, axis int) []Setting {
	var out []Setting
	add := func(change func(*Setting)) { c := s; change(&c); out = append(out, c) }
	switch axis {
	case 0:
		for _, n := range t.o.Loads {
			add(func(s *Setting) { s.Load = n })
		}
	case 1:
		for _, n := range t.o.DelayUS {
			add(func(s *Setting) { s.DelayUS = n })
		}
	case 2:
		for _, n := range t.o.MaxBatch {
			add(func(s *Setting) { s.MaxBatch = n })
		}
	default:
		for _, n := range t.o.Instances {
			add(func(s *Setting) { s.Instances = n })
		}
	}
	return out
}

// walk goes up and down an axis while it gets better.
func (t *tuner) walk(ctx context.Context, from Setting, axis int) (Setting, error) {
	line := t.values(from, axis)
	at := slices.Index(line, from)
	best := from
	for _, direction := range []int{1, -1} {
		worse := 0
		for i := at + direction; i >= 0 && i < len(line) && worse < 2; i += direction {
			trial, err := t.try(ctx, line[i])
			if err != nil {
				return best, err
			}
			if t.better(trial, t.known[best]) {
				best, worse = line[i], 0
			} else {
				worse++ // one bad step may be noise, two are a trend
			}
		}
	}
	return best, nil
}

// keeps reports whether a trial is within the budget.
func (t *tuner) keeps(x Trial) bool {
	return x.Failed == "" && x.Errors == 0 && x.Rows > 0 && (t.o.P99 == 0 || x.P99 <= t.o.P99)
}

// better compares two trials: within the budget beats beyond it, then more rows
// a second by at least 2%, beyond the budget the lower p99.
func (t *tuner) better(a, b Trial) bool {
	ka, kb := t.keeps(a), t.keeps(b)
	switch {
	case ka != kb:
		return ka
	case ka:
		return a.Rows > 1.02*b.Rows
	case a.Failed != "" || a.Rows == 0:
		return false
	}
	return b.Failed != "" || a.P99 < b.P99
}

// try measures a setting once.
func (t *tuner) try(ctx context.Context, s Setting) (Trial, error) {
	if x, ok := t.known[s]; ok {
		return x, nil
	}
	x, ok := t.old[s]
	if ok {
		t.reused++
	} else {
		if t.o.Progress != nil {
			t.o.Progress(int64(len(t.order)), 0, s.String())
		}
		x = Trial{Setting: s}
		r, err := t.o.Measure(ctx, s)
		switch {
		case ctx.Err() != nil:
			return x, ctx.Err()
		case err != nil:
			x.Failed = err.Error()
		default:
			x.Rows, x.P99, x.P50, x.Errors, x.Stable = float64(r.Throughput), float64(r.Latency.P99), float64(r.Latency.P50), r.Errors, r.Stable
		}
	}
	t.known[s] = x
	t.order = append(t.order, x)
	if ok {
		return x, nil
	}
	return x, t.save()
}

func (t *tuner) result() TuneResult {
	r := TuneResult{Trials: t.order, Reused: t.reused, Budget: t.o.P99}
	for i := range t.order {
		if t.keeps(t.order[i]) && (r.Best == nil || t.better(t.order[i], *r.Best)) {
			r.Best = &t.order[i]
		}
	}
	return r
}

func (t *tuner) resume() error {
	t.old = map[Setting]Trial{}
	if t.o.Journal == "" {
		return nil
	}
	b, err := regular.ReadFile(t.o.Journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var j journal
	if err == nil {
		err = json.Unmarshal(b, &j)
	}
	if err != nil {
		return failure.New(failure.Artifact, "read the journal of tune: %w", err).At(t.o.Journal)
	}
	if j.Format != journalFormat || j.Key != t.o.Key {
		return nil // of another model, server or machine
	}
	for _, x := range j.Trials {
		if x.Failed == "" {
			t.old[x.Setting] = x
		}
	}
	return nil
}

func (t *tuner) save() error {
	if t.o.Journal == "" {
		return nil
	}
	all := map[Setting]Trial{}
	for s, x := range t.old {
		all[s] = x
	}
	for s, x := range t.known {
		all[s] = x
	}
	j := journal{Format: journalFormat, Key: t.o.Key}
	for _, x := range all {
		j.Trials = append(j.Trials, x)
	}
	sort.Slice(j.Trials, func(a, b int) bool { return j.Trials[a].Setting.String() < j.Trials[b].Setting.String() })
	b, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	temporary := t.o.Journal + ".new"
	if err := os.MkdirAll(filepath.Dir(t.o.Journal), 0o755); err != nil {
		return failure.New(failure.Artifact, "write the journal of tune: %w", err)
	}
	if err := os.WriteFile(temporary, append(b, '\n'), 0o644); err != nil {
		return failure.New(failure.Artifact, "write the journal of tune: %w", err)
	}
	return os.Rename(temporary, t.o.Journal)
}

// Patch returns the best setting as a piece of a configuration: the keys of the
// section triton that differ from a default.
func (x Trial) Patch(kind string) ([]byte, error) {
	type batching struct {
		Delay int64 `yaml:"max_queue_delay_us"`
	}
	type group struct {
		Kind  string `yaml:"kind"`
		Count int    `yaml:"count"`
	}
	var doc struct {
		Triton struct {
			MaxBatch int       `yaml:"max_batch_size"`
			Groups   []group   `yaml:"instance_groups"`
			Batching *batching `yaml:"dynamic_batching,omitempty"`
		} `yaml:"triton"`
	}
	doc.Triton.MaxBatch = x.Setting.MaxBatch
	doc.Triton.Groups = []group{{kind, x.Setting.Instances}}
	if x.Setting.DelayUS >= 0 {
		doc.Triton.Batching = &batching{x.Setting.DelayUS}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Found by trtship tune: %.1f rows/s, p99 %.3f ms at %d requests at a time.\n", x.Rows, x.P99, x.Setting.Load)
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return nil, err
	}
	return []byte(b.String()), e.Close()
}
