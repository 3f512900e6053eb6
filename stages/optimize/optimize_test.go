package optimize

import (
	"context"
	"encoding/json"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/passes"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

func library(t *testing.T) ort.Library {
	t.Helper()
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// inputs are artifacts by kind, as the pipeline would give them.
type inputs map[artifact.Kind]string

func (i inputs) One(k artifact.Kind) (artifact.Artifact, error) {
	dir, ok := i[k]
	if !ok {
		return artifact.Artifact{}, fs.ErrNotExist
	}
	return artifact.Artifact{Record: artifact.Record{Kind: k}, Dir: dir}, nil
}

func (i inputs) All(k artifact.Kind) []artifact.Artifact {
	a, err := i.One(k)
	if err != nil {
		return nil
	}
	return []artifact.Artifact{a}
}

// caseInputs makes the artifacts of one of the cases: its graph and the named
// feeds, one point each.
func caseInputs(t *testing.T, folder, file string, feeds ...string) inputs {
	t.Helper()
	src := filepath.Join(testkit.Root(t), "testdata", "cases", folder)
	model := t.TempDir()
	copyFile(t, filepath.Join(src, file), filepath.Join(model, ModelFile))
	ref := t.TempDir()
	man := validation.Manifest{Format: validation.ReferenceFormat, Source: "test"}
	for i, f := range feeds {
		dir := f
		if err := os.MkdirAll(filepath.Join(ref, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		arrays, err := tensor.ReadNPZ(filepath.Join(src, "feed_"+f+".npz"))
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.WriteNPZ(filepath.Join(ref, dir, "0.in.npz"), arrays); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			for _, a := range arrays {
				man.Inputs = append(man.Inputs, validation.Array{Name: a.Name, DType: a.DType})
			}
		}
		man.Points = append(man.Points, validation.Point{Name: f, Samples: []validation.Sample{{In: dir + "/0.in.npz", Out: dir + "/0.out.npz"}}})
	}
	text, err := json.Marshal(man)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ref, "reference.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return inputs{artifact.ONNX: model, artifact.Reference: ref}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func testConfig() *config.Config {
	c := &config.Config{}
	c.Optimize = config.Optimize{Enabled: true, FoldMB: 16}
	c.Validation.Threads, c.Validation.TimeoutS = 1, 60
	return c
}

// result is what a run of the stage left.
type result struct {
	checks map[string]report.Check
	sum    report.Optimization
	model  *onnx.Model
	log    string
}

func runStage(t *testing.T, s *Stage, in inputs) (result, error) {
	t.Helper()
	out := testkit.NewOutputs(t)
	checks, err := s.Run(t.Context(), in, out)
	if err != nil {
		return result{}, err
	}
	r := result{checks: map[string]report.Check{}, log: out.LogText()}
	for _, c := range checks {
		r.checks[c.ID] = c
	}
	out.Document(artifact.OptimizeReport, &r.sum)
	if len(out.Published) != 1 || out.Published[0].Kind != artifact.OptimizedONNX {
		t.Fatalf("published %v", out.Published)
	}
	if r.model, err = onnx.Open(filepath.Join(out.Published[0].Dir, ModelFile)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.model.Close() })
	return r, nil
}

func wantVerdicts(t *testing.T, r result, want report.Verdict) {
	t.Helper()
	for _, id := range []string{checkOutputs, checkSignature, checkPasses} {
		if r.checks[id].Verdict != want {
			t.Errorf("%s is %s: %+v", id, r.checks[id].Verdict, r.checks[id])
		}
	}
}

func TestOptimizedGraphIsProvenOnEveryFeed(t *testing.T) {
	lib := library(t)
	r, err := runStage(t, New(testConfig(), lib), caseInputs(t, "o03-subgraph-captures-outer", "if_captures.onnx", "pos", "neg"))
	if err != nil {
		t.Fatal(err)
	}
	wantVerdicts(t, r, report.Pass)
	if got := r.checks[checkOutputs].Got; !strings.Contains(got, "2 feeds") || !strings.Contains(got, "16 elements") {
		t.Errorf("outputs-unchanged got %q", got)
	}
	if r.sum.NodesAfter >= r.sum.NodesBefore {
		t.Errorf("%d nodes became %d", r.sum.NodesBefore, r.sum.NodesAfter)
	}
}

// wrong negates what a Relu returns.
type wrong struct{}

func (wrong) Name() string { return "wrong" }

func (wrong) Apply(m *graph.Module) (int, error) {
	changed := 0
	for _, n := range m.Main.Nodes {
		if n.Op == "Relu" {
			n.Op = "Neg"
			changed++
		}
	}
	return changed, nil
}

// bakes gives a Reshape the shape that it has at a batch of 2.
type bakes struct{}

func (bakes) Name() string { return "bakes-the-batch" }

func (bakes) Apply(m *graph.Module) (int, error) {
	for _, n := range m.Main.Nodes {
		if n.Op == "Relu" {
			shape := onnx.NewTensor("", tensor.FromInt64s(tensor.Int64, []int64{2}, []int64{2, 4}))
			n.Become("Reshape", nil, n.In[0], m.Main.AddInit("baked", shape))
			return 1, nil
		}
	}
	return 0, nil
}

// with puts a pass in front of the real ones.
func with(s *Stage, p passes.Pass) *Stage {
	s.passes = func(o passes.Options) ([]passes.Pass, error) {
		all, err := passes.All(o)
		return append([]passes.Pass{p}, all...), err
	}
	return s
}

func TestPassThatChangesOutputsIsDroppedAndNamed(t *testing.T) {
	lib := library(t)
	for _, p := range []passes.Pass{wrong{}, bakes{}} {
		t.Run(p.Name(), func(t *testing.T) {
			in := caseInputs(t, "o03-subgraph-captures-outer", "if_captures.onnx", "pos", "neg")
			r, err := runStage(t, with(New(testConfig(), lib), p), in)
			if err != nil {
				t.Fatal(err)
			}
			wantVerdicts(t, r, report.Pass)
			if r.sum.Passes[0].Name != p.Name() || r.sum.Passes[0].Dropped == "" {
				t.Errorf("first pass is %+v", r.sum.Passes[0])
			}
			if !strings.Contains(r.checks[checkPasses].Detail, p.Name()+": point ") && !strings.Contains(r.checks[checkPasses].Detail, p.Name()+": run ") {
				t.Errorf("passes-held says %q", r.checks[checkPasses].Detail)
			}
			for _, other := range r.sum.Passes[1:] {
				if other.Dropped != "" {
					t.Errorf("innocent pass was dropped: %+v", other)
				}
			}
			if r.sum.NodesAfter >= r.sum.NodesBefore {
				t.Errorf("the other passes did nothing: %d nodes became %d", r.sum.NodesBefore, r.sum.NodesAfter)
			}
		})
	}
}

func TestGraphThatOnlyOrderOrNamesMakeUnreadableIsMendedAndProven(t *testing.T) {
	lib := library(t)
	for _, file := range []string{"same_node_name.onnx", "unsorted_in_branch.onnx"} {
		t.Run(file, func(t *testing.T) {
			r, err := runStage(t, New(testConfig(), lib), caseInputs(t, "o06-order-and-names", file, "two"))
			if err != nil {
				t.Fatal(err)
			}
			wantVerdicts(t, r, report.Pass)
			if !strings.Contains(strings.Join(r.sum.Notes, "\n"), "refuses the exported file as it is") {
				t.Errorf("notes are %q", r.sum.Notes)
			}
		})
	}
}

func TestModelNewerThanTheRuntimeIsNamed(t *testing.T) {
	_, err := runStage(t, New(testConfig(), library(t)), caseInputs(t, "o14-not-a-model", "newest_onnx_defaults.onnx", "two"))
	if err == nil || failure.CodeOf(err) != failure.Model || !strings.Contains(err.Error(), "IR 14, onnxruntime") {
		t.Errorf("error is %v", err)
	}
}

func TestRandomOutputsAreProvenForTheirShapeOnly(t *testing.T) {
	r, err := runStage(t, New(testConfig(), library(t)), caseInputs(t, "r07-random-ops", "two_draws_cse_trap.onnx", "two"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(r.sum.Notes, "\n"), "output y differs from run to run") {
		t.Errorf("notes are %q", r.sum.Notes)
	}
	if n := r.model.NodeCount(); n != 4 {
		t.Errorf("%d nodes, the two draws must stay apart", n)
	}
}

func TestDefaultLevelOfTheRuntimeIsTriedOnTheResult(t *testing.T) {
	c := testConfig()
	c.Optimize.Enabled = false // our passes would remove what that optimizer stumbles over
	for file, feed := range map[string]string{"cast.onnx": "two", "identity.onnx": "two", "dropout.onnx": "two"} {
		t.Run(file, func(t *testing.T) {
			r, err := runStage(t, New(c, library(t)), caseInputs(t, "r01-ort-optimiser-breaks", file, feed))
			if err != nil {
				t.Fatal(err)
			}
			wantVerdicts(t, r, report.Pass)
			if notes := strings.Join(r.sum.Notes, "\n"); !strings.Contains(notes, "at its default optimisation level: does not load") {
				t.Errorf("notes are %q", notes)
			}
			r, err = runStage(t, New(testConfig(), library(t)), caseInputs(t, "r01-ort-optimiser-breaks", file, feed))
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(r.sum.Notes, "\n"); strings.Contains(notes, "does not load") {
				t.Errorf("after our passes the default level must load it: %q", notes)
			}
		})
	}
}

func TestStageThatIsTurnedOffShipsTheExportedGraph(t *testing.T) {
	c := testConfig()
	c.Optimize.Enabled = false
	r, err := runStage(t, New(c, library(t)), caseInputs(t, "o06-order-and-names", "dead_code.onnx", "two"))
	if err != nil {
		t.Fatal(err)
	}
	wantVerdicts(t, r, report.Pass)
	if r.sum.NodesAfter != r.sum.NodesBefore || len(r.sum.Passes) != 0 {
		t.Errorf("summary is %+v", r.sum)
	}
}

func TestUnknownPassNameIsAUsageError(t *testing.T) {
	c := testConfig()
	c.Optimize.Skip = []string{"no-such-pass"}
	_, err := runStage(t, New(c, library(t)), caseInputs(t, "o06-order-and-names", "dead_code.onnx", "two"))
	if failure.CodeOf(err) != failure.Usage {
		t.Errorf("error is %v", err)
	}
}

func TestNoFeedIsNoEvidence(t *testing.T) {
	r, err := runStage(t, New(testConfig(), library(t)), caseInputs(t, "o06-order-and-names", "dead_code.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	if v := r.checks[checkOutputs].Verdict; v != report.Broken {
		t.Errorf("outputs-unchanged is %s", v)
	}
}

func TestSameInputsGiveTheSameBytes(t *testing.T) {
	lib := library(t)
	in := caseInputs(t, "o03-subgraph-captures-outer", "nested_two_levels.onnx", "pos", "neg")
	var first []byte
	for range 2 {
		r, err := runStage(t, New(testConfig(), lib), in)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(r.model.Path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		} else if string(first) != string(b) {
			t.Error("two runs wrote other bytes")
		}
	}
}

func TestSpecNamesEveryCheckAndTool(t *testing.T) {
	s := New(testConfig(), ort.Library{Version: "1.30.0"})
	ids := map[string]bool{}
	for _, c := range s.Spec().Checks {
		ids[c.ID] = true
	}
	for _, id := range []string{checkOutputs, checkSignature, checkPasses} {
		if !ids[id] {
			t.Errorf("%s has no description", id)
		}
	}
	tools, err := s.Tools(context.Background())
	if err != nil || tools["onnxruntime"] != "1.30.0" {
		t.Errorf("tools are %v, %v", tools, err)
	}
	other := testConfig()
	other.Optimize.FoldMB = 1
	a, _ := json.Marshal(s.Settings())
	b, _ := json.Marshal(New(other, ort.Library{}).Settings())
	if string(a) == string(b) {
		t.Error("fold_limit_mb does not enter the key")
	}
}

func TestGraphThatCrashesTheRuntimeIsAnErrorThatSaysSo(t *testing.T) {
	_, err := runStage(t, New(testConfig(), library(t)), caseInputs(t, "o09-empty-optional-names", "split_empty_output18.onnx", "split"))
	if err == nil || !strings.Contains(err.Error(), "run the exported graph") || !strings.Contains(err.Error(), "SIGSEGV") {
		t.Errorf("error is %v", err)
	}
}

func TestWhatIsMissingIsAnError(t *testing.T) {
	lib := library(t)
	whole := caseInputs(t, "o06-order-and-names", "dead_code.onnx", "two")
	for name, change := range map[string]func(in inputs){
		"no graph":            func(in inputs) { delete(in, artifact.ONNX) },
		"no reference":        func(in inputs) { delete(in, artifact.Reference) },
		"an empty reference":  func(in inputs) { in[artifact.Reference] = t.TempDir() },
		"an empty artifact":   func(in inputs) { in[artifact.ONNX] = t.TempDir() },
		"a feed that is gone": func(in inputs) { in[artifact.Reference] = withoutFeed(t, in[artifact.Reference]) },
	} {
		in := inputs{artifact.ONNX: whole[artifact.ONNX], artifact.Reference: whole[artifact.Reference]}
		change(in)
		if _, err := runStage(t, New(testConfig(), lib), in); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := runStage(t, New(testConfig(), ort.Library{}), whole); failure.CodeOf(err) != failure.Missing {
		t.Errorf("without ONNX Runtime: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(testConfig(), lib).Run(ctx, whole, testkit.NewOutputs(t)); err == nil {
		t.Error("a run that was stopped has no error")
	}
}

func withoutFeed(t *testing.T, ref string) string {
	t.Helper()
	dir := t.TempDir()
	copyFile(t, filepath.Join(ref, "reference.json"), filepath.Join(dir, "reference.json"))
	return dir
}

func TestIRVersionThatIsTooOldIsAUsageError(t *testing.T) {
	c := testConfig()
	c.Optimize.IR = 3
	_, err := runStage(t, New(c, library(t)), caseInputs(t, "o01-initializers-as-inputs", "ir4_constant.onnx", "two"))
	if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), "needs 4") {
		t.Errorf("error is %v", err)
	}
	c.Optimize.IR = 11
	r, err := runStage(t, New(c, library(t)), caseInputs(t, "o01-initializers-as-inputs", "ir4_constant.onnx", "two"))
	if err != nil || r.model.Proto.GetIrVersion() != 11 {
		t.Errorf("IR %d, %v", r.model.Proto.GetIrVersion(), err)
	}
}

func TestDifferencesAreJudgedByTypeShapeAndScale(t *testing.T) {
	f := func(shape []int64, v ...float32) tensor.Tensor { return tensor.FromFloat32s(shape, v) }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	half := func(v float64) tensor.Tensor { return tensor.FromFloat64s(tensor.Float16, []int64{1}, []float64{v}) }
	tests := map[string]struct {
		want, got tensor.Tensor
		holds     bool
	}{
		"equal":                         {f([]int64{2}, 1, 2), f([]int64{2}, 1, 2), true},
		"another order of additions":    {f([]int64{2}, 1000, 0.001), f([]int64{2}, 1000.001, 0.0015), true},
		"too far for its scale":         {f([]int64{2}, 1, 2), f([]int64{2}, 1, 2.0001), false},
		"broadcast":                     {f([]int64{2}, 1, 1), f([]int64{2, 1}, 1, 1), false},
		"another type":                  {f([]int64{1}, 1), tensor.FromFloat64s(tensor.Float64, []int64{1}, []float64{1}), false},
		"NaN on both sides":             {f([]int64{1}, nan), f([]int64{1}, nan), true},
		"NaN that appeared":             {f([]int64{1}, 1), f([]int64{1}, nan), false},
		"NaN that went":                 {f([]int64{1}, nan), f([]int64{1}, 1), false},
		"infinity on both sides":        {f([]int64{2}, inf, 1), f([]int64{2}, inf, 1), true},
		"infinity of the other sign":    {f([]int64{1}, inf), f([]int64{1}, -inf), false},
		"infinity does not widen":       {f([]int64{2}, inf, 1), f([]int64{2}, inf, 1.001), false},
		"half precision by its own ulp": {half(1), half(1.001), true},
		"half precision too far":        {half(1), half(1.01), false},
		"an integer by one":             {tensor.FromInt64s(tensor.Int64, []int64{1}, []int64{5}), tensor.FromInt64s(tensor.Int64, []int64{1}, []int64{6}), false},
		"equal strings":                 {tensor.FromStrings([]int64{1}, []string{"a"}), tensor.FromStrings([]int64{1}, []string{"a"}), true},
	}
	for name, tt := range tests {
		why := (&prover{}).compare(&proof{}, tensor.Named{Name: "y", Tensor: tt.want}, tt.got)
		if (why == "") != tt.holds {
			t.Errorf("%s: %q", name, why)
		}
	}
	random := &prover{random: map[string]bool{"y": true}}
	if why := random.compare(&proof{}, tensor.Named{Name: "y", Tensor: f([]int64{1}, 1)}, f([]int64{1}, 9)); why != "" {
		t.Errorf("a random output was compared: %s", why)
	}
	if why := random.compare(&proof{}, tensor.Named{Name: "y", Tensor: f([]int64{1}, 1)}, f([]int64{2}, 1, 1)); why == "" {
		t.Error("the shape of a random output was not compared")
	}
}
