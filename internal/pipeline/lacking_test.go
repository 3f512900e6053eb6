package pipeline_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/report"
)

// optional makes the last stage read the optimized and the exported graph, both
// only if they are there, as benchmark does.
func optional(c *chain) {
	c.pack.Describe.In = []stage.In{{Kind: artifact.ONNX, Optional: true}, {Kind: artifact.OptimizedONNX, Optional: true}}
}

func TestWhatTheStoreLacksIsOneErrorBeforeTheFirstStage(t *testing.T) {
	none := "the store has none under its present key"
	tests := map[string]struct {
		before []string // --only of a run before, nil: none
		change func(p *project, o *pipeline.Options, c *chain)
		want   string
		lost   []failure.Detail
		hint   string
		stages []string
	}{
		"from, with an empty store": {
			change: func(_ *project, o *pipeline.Options, _ *chain) { o.From = "package" },
			want:   "run package: it reads onnx-optimized of optimize, which is not in the store",
			lost: []failure.Detail{
				{Label: "export", Value: "before --from package: " + none},
				{Label: "optimize", Value: "before --from package: its own inputs are not in the store"},
			},
			hint:   "Run without --from, or with `--from export`.",
			stages: []string{"inspect not-asked", "export not-asked", "validate not-asked", "optimize not-asked", "package missing"},
		},
		"from, with part of it in the store, names the nearest stage to begin at": {
			before: []string{"export"},
			change: func(_ *project, o *pipeline.Options, _ *chain) { o.From = "package" },
			want:   "run package: it reads onnx-optimized of optimize, which is not in the store",
			lost:   []failure.Detail{{Label: "optimize", Value: "before --from package: " + none}},
			hint:   "Run without --from, or with `--from optimize`.",
			stages: []string{"inspect not-asked", "export not-asked*", "validate not-asked", "optimize not-asked", "package missing"},
		},
		"a stage that could do without an input does not run without it": {
			before: []string{"export"},
			change: func(_ *project, o *pipeline.Options, c *chain) { o.From = "package"; optional(c) },
			want:   "run package: it reads onnx-optimized of optimize, which is not in the store",
			lost:   []failure.Detail{{Label: "optimize", Value: "before --from package: " + none}},
			hint:   "Run without --from, or with `--from optimize`.",
			stages: []string{"inspect not-asked", "export not-asked*", "validate not-asked", "optimize not-asked", "package missing"},
		},
		"only, and stages that could run do not start": {
			change: func(_ *project, o *pipeline.Options, _ *chain) { o.Only = []string{"inspect", "optimize"} },
			want:   "run optimize: it reads onnx of export, which is not in the store",
			lost:   []failure.Detail{{Label: "export", Value: "not in --only inspect,optimize: " + none}},
			hint:   "Run without --only, or with `--only inspect,export,optimize`.",
			stages: []string{"inspect missing", "export not-asked", "validate not-asked", "optimize missing", "package not-asked"},
		},
		"from and only": {
			change: func(_ *project, o *pipeline.Options, _ *chain) {
				o.From, o.Only = "export", []string{"package", "validate"}
			},
			want: "run validate: it reads onnx of export, which is not in the store",
			lost: []failure.Detail{
				{Label: "export", Value: "not in --only package,validate: " + none},
				{Label: "optimize", Value: "not in --only package,validate: its own inputs are not in the store"},
			},
			hint:   "Run without --from and --only.",
			stages: []string{"inspect not-asked", "export not-asked", "validate missing", "optimize not-asked", "package missing"},
		},
		"what changed since is said": {
			before: []string{"export"},
			change: func(_ *project, o *pipeline.Options, c *chain) { o.From = "validate"; c.export.Setting = 2 },
			want:   "run validate: it reads onnx of export, which is not in the store",
			lost: []failure.Detail{
				{Label: "export", Value: "before --from validate: " + none + " (settings: null -> 2)"},
			},
			hint:   "Run without --from, or with `--from export`.",
			stages: []string{"inspect not-asked", "export not-asked", "validate missing", "optimize missing", "package missing"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			if tt.before != nil {
				o := p.options(newChain(p).list()...)
				o.Only = tt.before
				p.mustRun(o)
			}
			c := newChain(p)
			o := p.options(c.list()...)
			tt.change(p, &o, c)
			rep, err := p.run(o)
			f, ok := errors.AsType[*failure.Error](err)
			if !ok || f.Code != failure.Missing || f.Message != tt.want || f.Hint != tt.hint {
				t.Fatalf("error %v (code %d)\nhint %q\nwant  %s\nhint %q", err, failure.CodeOf(err), f.Hint, tt.want, tt.hint)
			}
			if d := cmp.Diff(tt.lost, f.Details); d != "" {
				t.Errorf("details (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.stages, verdicts(rep)); d != "" || rep.ExitCode != 3 || c.runs() != "00000" {
				t.Errorf("exit code %d, runs %s, stages (-want +got):\n%s", rep.ExitCode, c.runs(), d)
			}
			if latest, err := pipeline.Latest(p.path("runs")); err != nil || latest.ID != rep.Run.ID {
				t.Errorf("the report was not written: %v %v", latest, err)
			}
		})
	}
}

func TestTheFlagsOfTheHintWork(t *testing.T) {
	p := newProject(t)
	for _, change := range []func(o *pipeline.Options){
		func(o *pipeline.Options) { o.From = "package" },
		func(o *pipeline.Options) { o.Only = []string{"package"} },
	} {
		o := p.options(newChain(p).list()...)
		change(&o)
		_, err := p.run(o)
		f, ok := errors.AsType[*failure.Error](err)
		if !ok {
			t.Fatalf("error %v", err)
		}
		words := strings.Fields(strings.NewReplacer("`", " ", ",", " ").Replace(f.Hint))
		o = p.options(newChain(p).list()...)
		if i := slices.Index(words, "with"); o.From != "" || words[i+1] == "--from" {
			o.From = words[i+2]
		} else {
			o.Only = words[i+2 : len(words)-1]
		}
		if rep := p.mustRun(o); rep.ExitCode != 0 || stageOf(t, rep, "package").Verdict != report.Pass {
			t.Errorf("%s: exit code %d, %v", f.Hint, rep.ExitCode, verdicts(rep))
		}
		p = newProject(t)
	}
}

func TestWhatThisRunMakesAnewIsLookedForBehindIt(t *testing.T) {
	p := newProject(t)
	p.mustRun(p.options(newChain(p).list()...))
	p.write("model.py", "weights = 2")
	c := newChain(p)
	o := p.options(c.list()...)
	o.Only = []string{"export", "package"}
	rep := p.mustRun(o)
	want := []string{"inspect not-asked", "export pass", "validate not-asked", "optimize not-asked", "package missing"}
	if d := cmp.Diff(want, verdicts(rep)); d != "" || rep.ExitCode != 3 || c.runs() != "01000" {
		t.Errorf("exit code %d, runs %s, stages (-want +got):\n%s", rep.ExitCode, c.runs(), d)
	}
	check := stageOf(t, rep, "package").Checks[0]
	if check.ID != "package/inputs" || !strings.Contains(check.Detail, "there is no onnx-optimized: optimize is not asked for") ||
		check.Hint != "Run without --only, or with `--only export,optimize,package`." {
		t.Errorf("check %+v", check)
	}
}

func TestWithMissingAllowedAStageRunsWithWhatThereIs(t *testing.T) {
	p := newProject(t)
	o := p.options(newChain(p).list()...)
	o.Only = []string{"export"}
	p.mustRun(o)
	for name, tt := range map[string]struct {
		setting any
		want    report.Verdict
		notes   int
	}{
		"one of two inputs is in the store": {nil, report.Pass, 1},
		"none is":                           {"new", report.Missing, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChain(p)
			optional(c)
			c.export.Setting = tt.setting
			o := p.options(c.list()...)
			o.From, o.AllowMissing = "package", true
			rep := p.mustRun(o)
			if s := stageOf(t, rep, "package"); s.Verdict != tt.want {
				t.Errorf("package is %s (%s), want %s", s.Verdict, s.Reason, tt.want)
			}
			if len(rep.Notes) != tt.notes || tt.notes > 0 && rep.Notes[0] != "package runs without onnx-optimized of optimize, which is not in the store" {
				t.Errorf("notes %q", rep.Notes)
			}
		})
	}
}
