package worker_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/internal/worker/workertest"
	"github.com/trtship/trtship/report"
)

// python returns the interpreter of TRTSHIP_PYTHON or of the locked
// environment; a test that needs it fails without.
func python(t *testing.T) string {
	t.Helper()
	home, err := worker.CacheHome(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	p, err := worker.FindPython("", os.Getenv("TRTSHIP_PYTHON"), home, os.Getenv("PATH"))
	if err != nil {
		t.Fatalf("%v: run make setup", err)
	}
	return p
}

type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func zoo(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/models")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, change func(*worker.Options)) (*worker.Worker, *log) {
	t.Helper()
	out := &log{}
	opt := worker.Options{Python: python(t), Subject: "zoo", Path: []string{zoo(t)}, Log: out, Timeout: 5 * time.Minute}
	if change != nil {
		change(&opt)
	}
	w, err := worker.Start(context.Background(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w, out
}

// shared is one child for all tests that leave it whole: importing torch is
// most of what a test costs.
var shared struct {
	once sync.Once
	w    *worker.Worker
	log  *log
}

func sharedWorker(t *testing.T) (*worker.Worker, *log) {
	t.Helper()
	shared.once.Do(func() {
		shared.log = &log{}
		opt := worker.Options{Python: python(t), Subject: "zoo", Path: []string{zoo(t)}, Log: shared.log}
		w, err := worker.Start(context.Background(), opt)
		if err != nil {
			t.Fatal(err)
		}
		shared.w = w
	})
	if shared.w == nil {
		t.Fatal("the shared worker did not start")
	}
	return shared.w, shared.log
}

func TestMain(m *testing.M) {
	workertest.RunChildIfAsked(echo)
	if out := os.Getenv("WORKER_TEST_ORPHAN"); out != "" {
		orphan(out)
	}
	testkit.Main(m, func() {
		if shared.w != nil {
			_ = shared.w.Close()
		}
	})
}

func input(name, dtype string, shape ...any) worker.Input {
	return worker.Input{Name: name, DType: dtype, Shape: shape}
}

func at(argument string, in worker.Input) worker.Input {
	in.Argument = argument
	return in
}

func model(factory string, inputs ...worker.Input) worker.Model {
	return worker.Model{Name: "zoo", Kind: "module", Factory: "zoo:" + factory, Inputs: inputs, Device: "cpu"}
}

func image() worker.Input { return input("image", "float32", "batch", 3, 8, 8) }

var threeFive = []worker.Sizes{{"batch": 3}, {"batch": 5}}

func TestInspectReportsWhatAModelIsMadeOf(t *testing.T) {
	w, log := sharedWorker(t)
	m := model("plain", image())
	m.FactoryArgs = map[string]any{"width": 6}
	m.OutputNames = []string{"logits"}
	got, err := w.Inspect(worker.InspectRequest{Model: m, Sizes: threeFive})
	if err != nil {
		t.Fatal(err)
	}
	// conv 3*6*9+6, bn 6+6, head 6*5+5; leaf outputs: conv, bn 3*6*64, dropout 3*6, head 3*5
	want := report.Inspection{
		Parameters: 215, TrainableParameters: 215, ParameterBytes: 860,
		ActivationUpperBound: 4 * (2*3*6*64 + 3*6 + 3*5),
		Inputs:               []report.Tensor{{Name: "image", DType: "float32", Dims: []string{"batch", "3", "8", "8"}}},
		Outputs:              []report.Tensor{{Name: "logits", DType: "float32", Dims: []string{"batch", "5"}}},
		Operators:            map[string]int{"Conv2d": 1, "BatchNorm2d": 1, "Linear": 1, "Dropout": 1},
		DTypes:               map[string]int64{"float32": 215},
		Findings:             []report.Finding{},
		Ranges:               []report.IntegerRange{},
	}
	if d := cmp.Diff(want, got.Inspection); d != "" {
		t.Errorf("inspection (-want +got):\n%s", d)
	}
	sources := []string{filepath.Join(zoo(t), "helper_weights.py"), filepath.Join(zoo(t), "zoo.py")}
	for _, s := range sources {
		if !strings.Contains(strings.Join(got.Sources, "\n"), s) {
			t.Errorf("sources %v lack %s", got.Sources, s)
		}
	}
	if !strings.HasPrefix(got.Torch, "2.") {
		t.Errorf("torch version %q", got.Torch)
	}
	if !strings.Contains(log.String(), "hello from user code on stdout") {
		t.Error("what user code prints is not in the log")
	}
}

func TestAFileThatTheFactoryReadsIsASource(t *testing.T) {
	w, _ := start(t, nil)
	got, err := w.Inspect(worker.InspectRequest{Model: model("reads_file", image()), Sizes: threeFive})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		filepath.Join(zoo(t), "helper_weights.py"), filepath.Join(zoo(t), "sub", "note.txt"), filepath.Join(zoo(t), "zoo.py"),
	}
	if d := cmp.Diff(want, got.Sources); d != "" {
		t.Errorf("sources (-want +got):\n%s", d)
	}
}

func TestAnInstalledPackageThatTheModelImportsIsASource(t *testing.T) {
	w, _ := start(t, nil)
	got, err := w.Inspect(worker.InspectRequest{Model: model("uses_installed", image()), Sizes: threeFive})
	if err != nil {
		t.Fatal(err)
	}
	last := got.Sources[len(got.Sources)-1]
	if !strings.Contains(last, "networkx-") || filepath.Base(last) != "RECORD" {
		t.Errorf("sources %v lack the package's RECORD", got.Sources)
	}
	if _, err := os.Stat(last); err != nil {
		t.Error(err)
	}
}

func TestInspectNamesWhatChangesFromRunToRun(t *testing.T) {
	w, _ := sharedWorker(t)
	got, err := w.Inspect(worker.InspectRequest{Model: model("training", input("x", "float32", "batch", 4)), Sizes: threeFive})
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Kind, Nodes string
		Severe      bool
	}
	var rows []row
	for _, f := range got.Inspection.Findings {
		rows = append(rows, row{f.Kind, strings.Join(f.Nodes, " "), f.Severe})
	}
	want := []row{
		{"training-mode", "drop", true},
		{"training-mode", "blind", true},
		{"random-operator", "bernoulli_", false},
		{"fp16-range", "mask (largest 1e+09)", false},
		{"fp16-range", "mask (1 of 4 values)", false},
		{"fp16-range", "masked_fill(-1e+30)", false},
	}
	if d := cmp.Diff(want, rows); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func nested() worker.Model {
	m := model("nested",
		at("batch.ids", input("ids", "int64", "batch", "seq")),
		at("batch.mask", input("mask", "float32", "batch", "seq")),
		at("pair.0", input("plus", "float32", "batch", 4)),
		at("pair.1", input("minus", "float32", "batch", 4)))
	m.OutputNames = []string{"logits", "hidden.1"}
	return m
}

var nestedSizes = []worker.Sizes{{"batch": 3, "seq": 7}, {"batch": 6, "seq": 5}}

func TestDictAndTupleInputsAreRoutedByArgument(t *testing.T) {
	w, _ := sharedWorker(t)
	got, err := w.Inspect(worker.InspectRequest{Model: nested(), Sizes: nestedSizes})
	if err != nil {
		t.Fatal(err)
	}
	want := []report.Tensor{
		{Name: "logits", DType: "float32", Dims: []string{"batch", "seq", "3"}},
		{Name: "hidden.1", DType: "float32", Dims: []string{"batch", "4"}},
	}
	if d := cmp.Diff(want, got.Inspection.Outputs); d != "" {
		t.Errorf("outputs (-want +got):\n%s", d)
	}
	ranges := []report.IntegerRange{{Input: "ids", Low: 0, High: 9, Source: "embedding (table of 10 rows)"}}
	if d := cmp.Diff(ranges, got.Inspection.Ranges); d != "" {
		t.Errorf("integer ranges (-want +got):\n%s", d)
	}
}

func TestOutputsAreFlattened(t *testing.T) {
	w, _ := sharedWorker(t)
	xy := []worker.Input{input("x", "float32", "batch", 4), input("y", "float32", "batch", 4)}
	all := nested()
	all.OutputNames = nil
	for name, c := range map[string]struct {
		model worker.Model
		want  string
	}{
		"a dataclass gives its fields, None left out": {model("data", xy...), "scores float32 labels int64"},
		"a named tuple gives its fields":              {model("pair", xy[0]), "a float32 b bfloat16"},
		"a nested dict gives paths":                   {all, "logits float32 hidden_0 float32 hidden_1 float32"},
		"a lone tensor is called output":              {model("plain", image()), "output float32"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := w.Inspect(worker.InspectRequest{Model: c.model, Sizes: []worker.Sizes{{"batch": 3, "seq": 5}}})
			if err != nil {
				t.Fatal(err)
			}
			var parts []string
			for _, o := range got.Inspection.Outputs {
				parts = append(parts, o.Name, o.DType)
			}
			if d := cmp.Diff(c.want, strings.Join(parts, " ")); d != "" {
				t.Errorf("outputs (-want +got):\n%s", d)
			}
		})
	}
}

func TestFailuresSayWhatAndWhere(t *testing.T) {
	w, _ := sharedWorker(t)
	pickled := filepath.Join(t.TempDir(), "pickled.pt")
	savePickle(t, pickled)
	two := model("plain", image())
	two.OutputNames = []string{"a", "b"}
	withArgs := model("broken", image())
	withArgs.FactoryArgs = map[string]any{"depth": 3}
	unknown := model("plain", image())
	unknown.Factory = "no.such:thing"
	formless := model("plain", image())
	formless.Factory = "plain"
	checkpoint := model("plain", image())
	checkpoint.Kind, checkpoint.Path = "checkpoint", pickled
	script := model("plain", image())
	script.Kind, script.Path = "torchscript", pickled
	script.Inputs = nil
	gone := checkpoint
	gone.Path = filepath.Join(t.TempDir(), "gone.pt")
	cuda := model("plain", image())
	cuda.Device = "cuda"
	for name, c := range map[string]struct {
		model worker.Model
		code  failure.Code
		kind  string
		texts []string
	}{
		"a factory that raises":            {withArgs, failure.Model, "load", []string{"zoo:broken raised RuntimeError: the factory is broken", "zoo.py:", `{"depth": 3}`}},
		"a factory that exits":             {model("exits", image()), failure.Model, "load", []string{"raised SystemExit: 3"}},
		"a factory that is not there":      {model("no_such", image()), failure.Model, "load", []string{"zoo has no 'no_such'", "plain"}},
		"a factory that is not callable":   {model("not_callable", image()), failure.Model, "load", []string{"is int, not callable"}},
		"a factory that makes no module":   {model("not_a_module", image()), failure.Model, "load", []string{"returned dict, not a torch.nn.Module"}},
		"a module that is not there":       {unknown, failure.Model, "load", []string{"no module named 'no'", "testdata/models"}},
		"a factory without a colon":        {formless, failure.Model, "load", []string{"package.module:callable"}},
		"a pickle without trust":           {checkpoint, failure.Model, "trust", []string{"trust_source", pickled}},
		"TorchScript without trust":        {script, failure.Model, "trust", []string{"trust_source"}},
		"a checkpoint that is not there":   {gone, failure.Model, "load", []string{"gone.pt", "No such file"}},
		"a forward that raises":            {model("raises", input("x", "float32", "batch", 4)), failure.Model, "forward", []string{"ValueError: no such luck", "zoo.py:", "x float32[3, 4]"}},
		"a shape that does not fit":        {model("plain", input("image", "float32", "batch", 2, 8, 8)), failure.Model, "forward", []string{"image float32[3, 2, 8, 8]"}},
		"a type that does not fit":         {model("plain", input("image", "int64", "batch", 3, 8, 8)), failure.Model, "forward", []string{"image int64[3, 3, 8, 8]"}},
		"too few inputs":                   {model("unused", input("x", "float32", "batch")), failure.Model, "signature", []string{"forward needs ignored", "declared inputs: x"}},
		"too many inputs":                  {model("plain", image(), input("more", "float32", 1)), failure.Model, "signature", []string{"input more has no argument left", "(image)"}},
		"an argument that is not there":    {model("plain", at("picture", image())), failure.Model, "signature", []string{"no argument 'picture'"}},
		"an argument that is given twice":  {model("unused", at("x", input("a", "float32", 2)), at("x", input("b", "float32", 2))), failure.Model, "signature", []string{"argument x is taken"}},
		"a number of outputs that differs": {two, failure.Model, "signature", []string{"returned 1 outputs, model.output_names has 2", "output_names: a, b", "(whole) float32[3, 5]"}},
		"a type that torch lacks":          {model("plain", input("image", "string", "batch")), failure.Model, "signature", []string{"string"}},
		"a GPU that is not there":          {cuda, failure.Missing, "missing", []string{"torch sees no GPU"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Inspect(worker.InspectRequest{Model: c.model, Sizes: threeFive})
			if got := failure.CodeOf(err); got != c.code {
				t.Fatalf("code %d (%v), want %d", got, err, c.code)
			}
			if got := worker.KindOf(err); got != c.kind {
				t.Errorf("kind %q, want %q", got, c.kind)
			}
			all := whole(err)
			for _, text := range c.texts {
				if !strings.Contains(all, text) {
					t.Errorf("error lacks %q:\n%s", text, all)
				}
			}
		})
	}
}

func whole(err error) string {
	e := err.(*failure.Error) //nolint:errorlint // tests look at the outermost
	parts := []string{e.Error(), e.Hint}
	for _, d := range e.Details {
		parts = append(parts, d.Label+": "+d.Value)
	}
	return strings.Join(parts, "\n")
}

// savePickle writes what torch.load reads only without weights_only: a plain
// pickle of a function call.
func savePickle(t *testing.T, path string) {
	t.Helper()
	text := "cbuiltins\nprint\n(Vowned\ntR."
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSizesThatTheModelRefusesAreSkippedAndNoted(t *testing.T) {
	w, _ := sharedWorker(t)
	got, err := w.Inspect(worker.InspectRequest{
		Model: model("steps", input("x", "float32", 2, "seq")), Sizes: []worker.Sizes{{"seq": 5}, {"seq": 8}, {"seq": 12}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(worker.Sizes{"seq": 8}, got.Sizes); d != "" {
		t.Errorf("sizes (-want +got):\n%s", d)
	}
	if len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "seq=5") {
		t.Errorf("notes %q, want one about seq=5", got.Notes)
	}
}

func TestForwardWritesOutputsByNameAndRepeats(t *testing.T) {
	w, _ := sharedWorker(t)
	dir := t.TempDir()
	var feeds []worker.Feed
	for _, n := range []string{"a", "b"} {
		f := worker.Feed{In: filepath.Join(dir, n+".in.npz"), Out: filepath.Join(dir, n+".out.npz")}
		x := tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 1}, Data: []byte{0, 0, 128, 63, 0, 0, 0, 64}} // 1, 2
		if err := tensor.WriteNPZ(f.In, []tensor.Named{{Name: "x", Tensor: x}}); err != nil {
			t.Fatal(err)
		}
		feeds = append(feeds, f)
	}
	got, err := w.Forward(worker.ForwardRequest{Model: model("pair", input("x", "float32", 2, 1)), Feeds: feeds, Twice: true})
	if err != nil {
		t.Fatal(err)
	}
	want := []worker.TensorInfo{{Name: "a", DType: "float32", Shape: []int64{2, 1}}, {Name: "b", DType: "bfloat16", Shape: []int64{2, 1}}}
	if d := cmp.Diff(want, got.Feeds[1].Outputs); d != "" {
		t.Errorf("outputs (-want +got):\n%s", d)
	}
	out, err := tensor.ReadNPZ(feeds[1].Out)
	if err != nil {
		t.Fatal(err)
	}
	arrays := []tensor.Named{
		{Name: "a", Tensor: tensor.Tensor{DType: tensor.Float32, Shape: []int64{2, 1}, Data: []byte{0, 0, 0, 64, 0, 0, 128, 64}}},
		{Name: "b", Tensor: tensor.Tensor{DType: tensor.BFloat16, Shape: []int64{2, 1}, Data: []byte{128, 63, 0, 64}}},
	}
	if d := cmp.Diff(arrays, out); d != "" {
		t.Errorf("arrays (-want +got):\n%s", d)
	}
	one, two := read(t, feeds[0].Out), read(t, feeds[1].Out)
	if !bytes.Equal(one, two) {
		t.Error("equal inputs give files that differ")
	}
}

func TestForwardTwiceNamesOutputsThatDiffer(t *testing.T) {
	w, _ := sharedWorker(t)
	dir := t.TempDir()
	f := worker.Feed{In: filepath.Join(dir, "in.npz"), Out: filepath.Join(dir, "out.npz")}
	x := tensor.Tensor{DType: tensor.Float32, Shape: []int64{1}, Data: []byte{0, 0, 128, 63}}
	if err := tensor.WriteNPZ(f.In, []tensor.Named{{Name: "x", Tensor: x}}); err != nil {
		t.Fatal(err)
	}
	m := model("noise", input("x", "float32", 1))
	m.OutputNames = []string{"still", "noisy"}
	got, err := w.Forward(worker.ForwardRequest{Model: m, Feeds: []worker.Feed{f}, Twice: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"noisy"}, got.Feeds[0].Different); d != "" {
		t.Errorf("different outputs (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"randn_like"}, got.RandomOperators); d != "" {
		t.Errorf("random operators (-want +got):\n%s", d)
	}
	m.Inputs[0].Name = "y"
	if _, err := w.Forward(worker.ForwardRequest{Model: m, Feeds: []worker.Feed{f}}); worker.KindOf(err) != "signature" {
		t.Errorf("a feed without the declared input gives %v, want a signature failure", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
