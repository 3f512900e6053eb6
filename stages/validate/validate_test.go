package validate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/stage"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/worker"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/validate"
)

func TestMain(m *testing.M) {
	ort.RunChildIfAsked()
	testkit.Main(m)
}

// inputs is one ONNX artifact.
type inputs struct{ dir string }

func (i inputs) One(kind artifact.Kind) (artifact.Artifact, error) {
	if kind != artifact.ONNX || i.dir == "" {
		return artifact.Artifact{}, fmt.Errorf("there is no %s", kind)
	}
	return artifact.Artifact{Record: artifact.Record{Kind: kind}, Dir: i.dir}, nil
}

func (i inputs) All(artifact.Kind) []artifact.Artifact { return nil }

var _ stage.Inputs = inputs{}

// load writes a configuration beside the models of the worker's tests.
func load(t *testing.T, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(testkit.Root(t), "internal", "worker", "testdata", "models"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trtship.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// graph copies a file to where an artifact would have it.
func graph(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.onnx"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// exported exports the configured model with the TorchScript exporter.
func exported(t *testing.T, cfg *config.Config) string {
	t.Helper()
	w, err := worker.Start(t.Context(), worker.OptionsFor(cfg, testkit.Python(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := t.TempDir()
	_, err = w.Export(worker.ExportRequest{Model: worker.ModelOf(cfg), Sizes: []worker.Sizes{{"batch": 4}}, Dir: dir, Opset: 17, ConstantFold: true})
	if err != nil {
		t.Fatal(err)
	}
	return graph(t, filepath.Join(dir, worker.RawModel))
}

type outcome struct {
	checks []report.Check
	out    *testkit.Outputs
	report report.Validation
	err    error
}

func run(t *testing.T, cfg *config.Config, dir string) outcome {
	t.Helper()
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	python := ""
	if cfg.Model.Kind != "onnx" {
		python = testkit.Python(t)
	}
	s := validate.New(cfg, python, lib)
	if _, err := json.Marshal(s.Settings()); err != nil {
		t.Errorf("settings: %v", err)
	}
	tools, err := s.Tools(t.Context())
	if err != nil || tools["onnxruntime"] != lib.Version {
		t.Errorf("tools = %v, %v", tools, err)
	}
	r := outcome{out: testkit.NewOutputs(t)}
	r.checks, r.err = s.Run(t.Context(), inputs{dir}, r.out)
	var known []string
	for _, d := range s.Spec().Checks {
		known = append(known, d.ID)
	}
	for _, c := range r.checks {
		if !slices.Contains(known, c.ID) {
			t.Errorf("check %s is not in the Spec", c.ID)
		}
	}
	if b, ok := r.out.Documents[artifact.ValidateReport]; ok {
		if err := json.Unmarshal(b, &r.report); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r outcome) bad() []string {
	out := []string{}
	for _, c := range r.checks {
		if c.Verdict != report.Pass {
			out = append(out, fmt.Sprintf("%s %s@%s %s: %s", c.ID, c.Subject.Output, c.Subject.Point, c.Verdict, c.Detail))
		}
	}
	return out
}

const rows = `
tensorrt:
  profiles:
    - inputs:
        x: {min: [1, %d], opt: [4, %d], max: [8, %d]}
validation: {num_samples: 2}
`

func TestATorchModelAgreesWithItsExport(t *testing.T) {
	cfg := load(t, `
model:
  name: plain
  factory: zoo:plain
  inputs:
    - {name: image, dtype: float32, shape: [batch, 3, 8, 8]}
  output_names: [logits]
target: onnxruntime
tensorrt:
  profiles:
    - inputs:
        image: {min: [1, 3, 8, 8], opt: [4, 3, 8, 8], max: [8, 3, 8, 8]}
validation: {num_samples: 2}
`)
	r := run(t, cfg, exported(t, cfg))
	if r.err != nil {
		t.Fatalf("%v\n%s", r.err, r.out.LogText())
	}
	if bad := r.bad(); len(bad) > 0 {
		t.Errorf("%q", bad)
	}
	var points []string
	for _, p := range r.report.Points {
		points = append(points, p.Name)
	}
	if want := []string{"min", "opt", "max", "off-profile"}; !slices.Equal(points, want) {
		t.Errorf("points %v, want %v", points, want)
	}
	if !strings.HasPrefix(r.report.Reference, "PyTorch 2") || !strings.Contains(r.report.Reference, "eval mode") {
		t.Errorf("reference %q", r.report.Reference)
	}
	if r.report.Stored.Reference == "" || r.report.Stored.Candidate == "" {
		t.Errorf("stored %+v", r.report.Stored)
	}
	var kinds []artifact.Kind
	for _, a := range r.out.Published {
		kinds = append(kinds, a.Kind)
	}
	for _, k := range []artifact.Kind{artifact.Reference, artifact.Outputs} {
		if !slices.Contains(kinds, k) {
			t.Errorf("no %s was published: %v", k, kinds)
		}
	}
	zoo := false
	for _, d := range r.out.Depends {
		zoo = zoo || filepath.Base(d) == "zoo.py"
	}
	if !zoo {
		t.Errorf("the model's source is no dependency: %v", r.out.Depends)
	}
}

// The model that is traced with 4 rows and answers with 4 for ever.
func TestABakedBatchFailsWithBothShapes(t *testing.T) {
	cfg := load(t, `
model:
  name: baked
  factory: zoo:baked
  inputs:
    - {name: x, dtype: float32, shape: [batch, 4]}
  output_names: [y]
`+fmt.Sprintf(rows, 4, 4, 4))
	r := run(t, cfg, exported(t, cfg))
	if r.err != nil {
		t.Fatal(r.err)
	}
	text := strings.Join(r.bad(), "\n")
	if !strings.Contains(text, `y: batch 8 gives no answer, expected [8,2]: run model.onnx: Reshape node "/model/Reshape" cannot turn [8,4] into [4,4]`) {
		t.Errorf("the baked batch was not caught: %s", text)
	}
	if len(r.report.Points) != 4 {
		t.Errorf("the report was not written: %+v", r.report)
	}
}

func TestAGivenGraphIsItsOwnReference(t *testing.T) {
	file := filepath.Join(testkit.Root(t), "testdata", "cases", "r05-token-ids", "model.onnx")
	cfg := load(t, `
model: {name: tokens, kind: onnx, path: `+file+`}
target: onnxruntime
tensorrt:
  profiles:
    - inputs:
        ids: {min: [1, 2], opt: [2, 3], max: [4, 5]}
        types: {min: [1, 2], opt: [2, 3], max: [4, 5]}
`)
	s := inputNames(t, file)
	if !slices.Contains(s, "ids") {
		// The names are those of the case; adapt the profile to them.
		for i, name := range s {
			cfg.TensorRT.Profiles[0].Inputs[name] = cfg.TensorRT.Profiles[0].Inputs[[]string{"ids", "types"}[i]]
		}
		delete(cfg.TensorRT.Profiles[0].Inputs, "ids")
		delete(cfg.TensorRT.Profiles[0].Inputs, "types")
	}
	r := run(t, cfg, graph(t, file))
	if r.err != nil {
		t.Fatalf("%v\n%s", r.err, r.out.LogText())
	}
	if bad := r.bad(); len(bad) > 0 {
		t.Errorf("%q", bad)
	}
	notes := strings.Join(r.report.Notes, "\n")
	if !strings.Contains(notes, "generated values stay in [0, 9]") || !strings.Contains(notes, "generated values stay in [0, 1]") {
		t.Errorf("the ranges that were found are not said: %q", notes)
	}
	if !strings.HasSuffix(r.report.Reference, "the given file") {
		t.Errorf("reference %q", r.report.Reference)
	}
}

func inputNames(t *testing.T, file string) []string {
	t.Helper()
	lib, err := ort.Find(t.Context(), ort.Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := ort.Open(t.Context(), lib, file, ort.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var names []string
	for _, in := range s.Inputs() {
		names = append(names, in.Name)
	}
	return names
}

func TestAnInputWithoutAProfileIsAConfigurationError(t *testing.T) {
	file := filepath.Join(testkit.Root(t), "testdata", "cases", "e01-baked-batch", "reshape.onnx")
	cfg := load(t, "model: {name: m, kind: onnx, path: "+file+"}\ntarget: onnxruntime\n")
	r := run(t, cfg, graph(t, file))
	if failure.CodeOf(r.err) != failure.Usage || !strings.Contains(r.err.Error(), "x float32[batch,8]") {
		t.Errorf("err = %v, want exit 2 naming the input", r.err)
	}
}

// pointwise is a graph y = op(x), x float32 [batch, 4].
func pointwise(t *testing.T, op string) string {
	t.Helper()
	elem := onnx.DataType(tensor.Float32)
	shape := &onnxpb.TensorShapeProto{Dim: []*onnxpb.TensorShapeProto_Dimension{
		{Value: &onnxpb.TensorShapeProto_Dimension_DimParam{DimParam: "batch"}}, {Value: &onnxpb.TensorShapeProto_Dimension_DimValue{DimValue: 4}},
	}}
	value := func(name string) []*onnxpb.ValueInfoProto {
		return []*onnxpb.ValueInfoProto{{Name: proto.String(name), Type: &onnxpb.TypeProto{
			Value: &onnxpb.TypeProto_TensorType{TensorType: &onnxpb.TypeProto_Tensor{ElemType: &elem, Shape: shape}},
		}}}
	}
	m := onnx.New(&onnxpb.ModelProto{
		IrVersion: proto.Int64(8), OpsetImport: []*onnxpb.OperatorSetIdProto{{Domain: proto.String(""), Version: proto.Int64(17)}},
		Graph: &onnxpb.GraphProto{
			Name: proto.String(op), Input: value("x"), Output: value("y"),
			Node: []*onnxpb.NodeProto{{OpType: proto.String(op), Name: proto.String("n"), Input: []string{"x"}, Output: []string{"y"}}},
		},
	}, ".")
	file := filepath.Join(t.TempDir(), "model.onnx")
	if err := m.Save(file, onnx.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAnotherGraphThanTheGivenModelIsHeldToTheModel(t *testing.T) {
	model := pointwise(t, "Sigmoid")
	cfg := load(t, "model: {name: m, kind: onnx, path: "+model+"}\ntarget: onnxruntime\ntensorrt:\n  profiles:\n    - inputs:\n        x: {min: [1, 4], opt: [2, 4], max: [4, 4]}\n")
	if r := run(t, cfg, graph(t, model)); r.err != nil || len(r.bad()) > 0 {
		t.Errorf("the model itself: %v, %q", r.err, r.bad())
	}
	r := run(t, cfg, graph(t, pointwise(t, "Neg")))
	if r.err != nil || !strings.Contains(strings.Join(r.bad(), " "), "fail") {
		t.Errorf("a graph that computes something else: %v, %q", r.err, r.bad())
	}
}

func TestAReferenceThatCannotAnswerIsSaid(t *testing.T) {
	// A graph that crashes ONNX Runtime: as the reference, it is broken.
	dir := filepath.Join(testkit.Root(t), "testdata", "cases", "o09-empty-optional-names")
	file := filepath.Join(dir, "split_empty_output.onnx")
	feed, err := tensor.ReadNPZ(filepath.Join(dir, "feed_split.npz"))
	if err != nil {
		t.Fatal(err)
	}
	shape := strings.ReplaceAll(fmt.Sprint(feed[0].Shape), " ", ", ")
	cfg := load(t, fmt.Sprintf("model: {name: m, kind: onnx, path: %s}\ntarget: onnxruntime\ntensorrt:\n  profiles:\n    - inputs:\n        x: {min: %s, opt: %s, max: %s}\n", file, shape, shape, shape))
	r := run(t, cfg, graph(t, file))
	if r.err != nil || len(r.checks) != 1 || r.checks[0].Verdict != report.Broken || !strings.Contains(r.checks[0].Detail, "SIGSEGV") {
		t.Errorf("%v, %q", r.err, r.bad())
	}
}

func TestABadRangeIsTheUsersMistakeNotTheGraphs(t *testing.T) {
	file := filepath.Join(testkit.Root(t), "testdata", "cases", "r05-token-ids", "model.onnx")
	names := inputNames(t, file)
	text := "model:\n  name: m\n  kind: onnx\n  path: " + file + "\n  inputs:\n"
	profile := "tensorrt:\n  profiles:\n    - inputs:\n"
	for _, n := range names {
		text += fmt.Sprintf("    - {name: %s, dtype: int64, shape: [batch, seq], range: [10, 10]}\n", n)
		profile += fmt.Sprintf("        %s: {min: [1, 2], opt: [2, 3], max: [4, 5]}\n", n)
	}
	r := run(t, load(t, text+"target: onnxruntime\n"+profile), graph(t, file))
	f, ok := r.err.(*failure.Error) //nolint:errorlint // the error itself is wanted
	if !ok || f.Code != failure.Usage || !strings.Contains(f.Hint, "inputs[].range: [0, ") {
		t.Errorf("err = %v", r.err)
	}
}

func TestSpecAndSources(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data.npz")
	if err := tensor.WriteNPZ(data, []tensor.Named{{Name: "x", Tensor: tensor.Zeros(tensor.Float32, 1, 4)}, {Name: "labels", Tensor: tensor.Zeros(tensor.Int64, 1)}}); err != nil {
		t.Fatal(err)
	}
	cfg := load(t, `
model:
  name: baked
  factory: zoo:baked
  inputs:
    - {name: x, dtype: float32, shape: [batch, 4]}
`+strings.Replace(fmt.Sprintf(rows, 4, 4, 4), "{num_samples: 2}", "{inputs: ["+data+"], task: {data: "+data+"}}", 1))
	s := validate.New(cfg, "/python", ort.Library{Version: "1"})
	if got := s.Spec().Needs; !slices.Equal(got, []stage.Need{stage.NeedTorch, stage.NeedORT}) {
		t.Errorf("needs %v", got)
	}
	if got := s.Sources(); !slices.Equal(got, []string{data, data}) {
		t.Errorf("sources %v", got)
	}
	b, err := json.Marshal(s.Settings())
	if err != nil || strings.Contains(string(b), dir) {
		t.Errorf("the settings hold a path: %s, %v", b, err)
	}
	if _, err := s.Run(t.Context(), inputs{}, testkit.NewOutputs(t)); err == nil {
		t.Error("ran without a graph")
	}
}
