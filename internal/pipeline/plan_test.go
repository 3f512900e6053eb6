package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/pipeline"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/report"
)

func TestOrder(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	k := func(kinds ...artifact.Kind) []artifact.Kind { return kinds }
	tests := map[string]struct {
		stages []stage.Planned
		want   string
		code   failure.Code
	}{
		"a list in order stays as it is": {stages: c.list(), want: "inspect export validate optimize package"},
		"kinds decide, not positions": {
			stages: []stage.Planned{{Stage: c.pack}, {Stage: c.optimize}, {Stage: c.validate}, {Stage: c.export}, {Stage: c.inspect}},
			want:   "export optimize package validate inspect",
		},
		"an optional input counts too": {
			stages: []stage.Planned{
				{Stage: &testkit.Fake{Describe: stage.Spec{Name: "build", In: []stage.In{{Kind: artifact.CalibrationData, Optional: true}}}}},
				{Stage: testkit.Text("calibrate", nil, artifact.CalibrationData)},
			},
			want: "calibrate build",
		},
		"several stages make one kind, and the reader comes after all": {
			stages: []stage.Planned{
				{Stage: testkit.Text("a", nil, artifact.Outputs)},
				{Stage: testkit.Text("reader", k(artifact.Outputs))},
				{Stage: testkit.Text("b", nil, artifact.Outputs)},
			},
			want: "a b reader",
		},
		"two stages that wait for each other are a bug": {
			stages: []stage.Planned{
				{Stage: testkit.Text("a", k(artifact.Engine), artifact.ONNX)},
				{Stage: testkit.Text("b", k(artifact.ONNX), artifact.Engine)},
			},
			code: failure.Bug,
		},
		"two stages of one name are a bug": {
			stages: []stage.Planned{{Stage: testkit.Text("a", nil)}, {Stage: testkit.Text("a", nil)}},
			code:   failure.Bug,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := pipeline.Order(tt.stages)
			if failure.CodeOf(err) != tt.code {
				t.Fatalf("error %v, want code %d", err, tt.code)
			}
			if tt.code == failure.OK && strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), tt.want)
			}
		})
	}
}

func TestWhatIsAskedFor(t *testing.T) {
	tests := map[string]struct {
		warm   bool // everything ran before
		change func(o *pipeline.Options, c *chain)
		want   []string
		runs   string // of inspect export validate optimize package, in this invocation
		code   int
	}{
		"everything": {
			want: []string{"inspect pass", "export pass", "validate pass", "optimize pass", "package pass"}, runs: "11111",
		},
		"until cuts off what comes after": {
			change: func(o *pipeline.Options, _ *chain) { o.Until = "validate" },
			want:   []string{"inspect pass", "export pass", "validate pass", "optimize not-asked", "package not-asked"}, runs: "11100",
		},
		"from takes what came before from the store": {
			warm:   true,
			change: func(o *pipeline.Options, c *chain) { o.From = "optimize"; c.optimize.Setting = "new" },
			want:   []string{"inspect not-asked", "export not-asked*", "validate not-asked", "optimize pass", "package pass*"}, runs: "00010",
		},
		"from without a store lacks inputs, and where missing things are allowed that is no error": {
			change: func(o *pipeline.Options, _ *chain) { o.From, o.AllowMissing = "optimize", true },
			want:   []string{"inspect not-asked", "export not-asked", "validate not-asked", "optimize missing", "package missing"}, runs: "00000", code: 3,
		},
		"only takes inputs from the store, through stages that are not asked for": {
			warm:   true,
			change: func(o *pipeline.Options, c *chain) { o.Only = []string{"package"}; c.pack.Setting = "new" },
			want:   []string{"inspect not-asked", "export not-asked*", "validate not-asked", "optimize not-asked*", "package pass"}, runs: "00001",
		},
		"a stage that is turned off is skipped, and its readers lack inputs": {
			change: func(o *pipeline.Options, _ *chain) { o.Stages[3].Off = "optimize.enabled is false" },
			want:   []string{"inspect pass", "export pass", "validate pass", "optimize skip", "package missing"}, runs: "11100", code: 3,
		},
		"a reader that can do without goes on": {
			change: func(o *pipeline.Options, c *chain) {
				o.Stages[3].Off = "optimize.enabled is false"
				c.pack.Describe.In = []stage.In{{Kind: artifact.OptimizedONNX, Optional: true}, {Kind: artifact.ONNX}}
			},
			want: []string{"inspect pass", "export pass", "validate pass", "optimize skip", "package pass"}, runs: "11101",
		},
		"fresh runs again what the store has": {
			warm:   true,
			change: func(o *pipeline.Options, _ *chain) { o.Fresh = true },
			want:   []string{"inspect pass", "export pass", "validate pass", "optimize pass", "package pass"}, runs: "11111",
		},
		"fresh does not run what is not asked for": {
			warm:   true,
			change: func(o *pipeline.Options, _ *chain) { o.Fresh = true; o.Only = []string{"optimize"} },
			want:   []string{"inspect not-asked", "export not-asked*", "validate not-asked", "optimize pass", "package not-asked"}, runs: "00010",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			if tt.warm {
				p.mustRun(p.options(newChain(p).list()...))
			}
			c := newChain(p)
			o := p.options(c.list()...)
			if tt.change != nil {
				tt.change(&o, c)
			}
			rep := p.mustRun(o)
			if d := cmp.Diff(tt.want, verdicts(rep)); d != "" {
				t.Errorf("stages (-want +got):\n%s", d)
			}
			if c.runs() != tt.runs {
				t.Errorf("runs %s, want %s", c.runs(), tt.runs)
			}
			if rep.ExitCode != tt.code {
				t.Errorf("exit code %d, want %d", rep.ExitCode, tt.code)
			}
		})
	}
}

func TestWhatCannotBeAskedFor(t *testing.T) {
	tests := map[string]struct {
		change func(o *pipeline.Options)
		want   string
	}{
		"an unknown --until":    {func(o *pipeline.Options) { o.Until = "bild" }, `--until: there is no stage "bild"`},
		"an unknown --from":     {func(o *pipeline.Options) { o.From = "x" }, `--from: there is no stage "x"`},
		"an unknown --only":     {func(o *pipeline.Options) { o.Only = []string{"export", "x"} }, `--only: there is no stage "x"`},
		"from behind until":     {func(o *pipeline.Options) { o.From, o.Until = "package", "export" }, "--from package: it comes after --until export"},
		"only what is off":      {func(o *pipeline.Options) { o.Only = []string{"inspect"}; o.Stages[0].Off = "off" }, "no stage is left to run"},
		"only and until differ": {func(o *pipeline.Options) { o.Only = []string{"package"}; o.Until = "export" }, "no stage is left to run"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			c := newChain(p)
			o := p.options(c.list()...)
			tt.change(&o)
			rep, err := p.run(o)
			if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want code 2 and %q", err, tt.want)
			}
			if rep != nil || c.runs() != "00000" {
				t.Errorf("something ran: %v", c.runs())
			}
		})
	}
}

func TestPreflight(t *testing.T) {
	gone := failure.New(failure.Missing, "no NVIDIA GPU was found").WithHint("Run on a machine with one.")
	probes := map[stage.Need]func(context.Context) error{
		stage.NeedTorch: func(context.Context) error { return nil },
		stage.NeedGPU:   func(context.Context) error { return gone },
	}
	setup := func(p *project) (*chain, pipeline.Options) {
		c := newChain(p)
		c.export.Describe.Needs = []stage.Need{stage.NeedTorch}
		c.optimize.Describe.Needs = []stage.Need{stage.NeedGPU}
		c.optimize.Describe.Hardware = true
		o := p.options(c.list()...)
		o.Probes = probes
		return c, o
	}
	t.Run("a run that cannot be done says so before its first stage, and the --until that can", func(t *testing.T) {
		p := newProject(t)
		c, o := setup(p)
		rep, err := p.run(o)
		f, ok := errors.AsType[*failure.Error](err)
		if !ok || f.Code != failure.Missing || !strings.Contains(f.Error(), "run optimize: gpu is not available here: no NVIDIA GPU was found") {
			t.Fatalf("error %v", err)
		}
		if !strings.Contains(f.Hint, "--until validate") {
			t.Errorf("hint %q does not name the stage before", f.Hint)
		}
		if c.runs() != "00000" {
			t.Errorf("stages ran: %s", c.runs())
		}
		want := []string{"inspect missing", "export missing", "validate missing", "optimize missing", "package missing"}
		if d := cmp.Diff(want, verdicts(rep)); d != "" || rep.ExitCode != 3 || rep.Verdict != report.Missing {
			t.Errorf("exit code %d, verdict %s, stages (-want +got):\n%s", rep.ExitCode, rep.Verdict, d)
		}
		last, err := pipeline.Latest(p.path("runs"))
		if err != nil || last.ID != rep.Run.ID {
			t.Errorf("the report was not written: %v %v", last, err)
		}
	})
	t.Run("the --until of the hint works", func(t *testing.T) {
		p := newProject(t)
		_, o := setup(p)
		o.Until = "validate"
		if rep := p.mustRun(o); rep.ExitCode != 0 {
			t.Errorf("exit code %d", rep.ExitCode)
		}
	})
	t.Run("without a stage that can run there is no such hint", func(t *testing.T) {
		p := newProject(t)
		_, o := setup(p)
		o.Only = []string{"optimize"}
		_, err := p.run(o)
		f, ok := errors.AsType[*failure.Error](err)
		if !ok || strings.Contains(f.Hint, "--until") {
			t.Errorf("error %v, hint %v", err, f)
		}
	})
	t.Run("what is turned off is not asked about", func(t *testing.T) {
		p := newProject(t)
		_, o := setup(p)
		o.Stages[3].Off = "off"
		o.Stages[4].Off = "off"
		if rep := p.mustRun(o); rep.ExitCode != 0 {
			t.Errorf("exit code %d", rep.ExitCode)
		}
	})
	t.Run("a need that nobody can look for is missing", func(t *testing.T) {
		p := newProject(t)
		_, o := setup(p)
		o.Probes = nil
		if _, err := p.run(o); failure.CodeOf(err) != failure.Missing || !strings.Contains(err.Error(), "torch") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("with missing allowed the rest runs", func(t *testing.T) {
		p := newProject(t)
		c, o := setup(p)
		o.AllowMissing = true
		rep := p.mustRun(o)
		want := []string{"inspect pass", "export pass", "validate pass", "optimize missing", "package missing"}
		if d := cmp.Diff(want, verdicts(rep)); d != "" || rep.ExitCode != 3 {
			t.Errorf("exit code %d, stages (-want +got):\n%s", rep.ExitCode, d)
		}
		opt := stageOf(t, rep, "optimize")
		if opt.Checks[0].ID != "optimize/completes" || opt.Checks[0].Hint != "Run on a machine with one." || !opt.Checks[0].Hardware {
			t.Errorf("check %+v", opt.Checks[0])
		}
		if r := stageOf(t, rep, "package").Reason; r != "there is no onnx-optimized: optimize is missing" {
			t.Errorf("reason %q", r)
		}
		if c.runs() != "11100" {
			t.Errorf("runs %s", c.runs())
		}
	})
}

func TestAFullDiskIsNamedBeforeTheFirstStage(t *testing.T) {
	p := newProject(t)
	c := newChain(p)
	o := p.options(c.list()...)
	o.DiskBytes = 1 << 60
	_, err := p.run(o)
	if failure.CodeOf(err) != failure.Artifact || c.runs() != "00000" {
		t.Errorf("error %v, runs %s", err, c.runs())
	}
}

func TestASourceThatIsNotThereIsNamedBeforeTheFirstStage(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pipeline.Options)
		asked  bool
	}{
		"of a stage that is asked for":         {func(*pipeline.Options) {}, true},
		"also where missing things may be":     {func(o *pipeline.Options) { o.AllowMissing = true }, true},
		"not of a stage behind --until":        {func(o *pipeline.Options) { o.Until = "validate" }, false},
		"not of a stage that is turned off":    {func(o *pipeline.Options) { o.Stages[3].Off, o.Stages[4].Off = "off", "off" }, false},
		"and its folder of code like any file": {func(*pipeline.Options) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProject(t)
			stages := newChain(p)
			stages.optimize.Source = []string{p.path("nothing")}
			if strings.Contains(name, "code") {
				stages.optimize.Source = []string{stage.Code(p.path("nothing"))}
			}
			o := p.options(stages.list()...)
			o.CheckSources = func(names, sources []string) error {
				if slices.Contains(sources, p.path("nothing")) && slices.Contains(names, "optimize") {
					return failure.New(failure.Artifact, "key: nothing is not there")
				}
				return nil
			}
			c.change(&o)
			rep, err := p.run(o)
			if !c.asked {
				if err != nil || rep.ExitCode != 0 {
					t.Errorf("%v, exit code %d", err, rep.ExitCode)
				}
				return
			}
			if failure.CodeOf(err) != failure.Artifact || rep.ExitCode != int(failure.Artifact) || stages.runs() != "00000" {
				t.Errorf("error %v, exit code %d, runs %s", err, rep.ExitCode, stages.runs())
			}
			if r := stageOf(t, rep, "inspect").Reason; r != "not started: a file that is to be read is not there" {
				t.Errorf("reason %q", r)
			}
		})
	}
}
