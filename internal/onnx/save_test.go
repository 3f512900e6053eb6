package onnx

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
)

// loaded returns m's message with all data in raw_data, to compare models
// wherever their data lies.
func loaded(t *testing.T, m *Model) *onnxpb.ModelProto {
	t.Helper()
	p := proto.Clone(m.Proto).(*onnxpb.ModelProto)
	c := m.With(p)
	err := c.walkTensors(func(_ string, w *onnxpb.TensorProto) error {
		d, err := c.TensorData(w)
		if err != nil || d.DType == tensor.String {
			return err
		}
		w.RawData, w.FloatData, w.DoubleData, w.Int32Data, w.Int64Data, w.Uint64Data = d.Data, nil, nil, nil, nil, nil
		w.DataLocation, w.ExternalData = nil, nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSavingKeepsEveryModelOfTheCases(t *testing.T) {
	files, err := filepath.Glob(caseFile("*", "*.onnx"))
	if err != nil || len(files) < 60 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		m, err := Open(f)
		if err != nil {
			continue // what is wrong with them is tested elsewhere
		}
		for name, o := range map[string]SaveOptions{"in one file": {}, "external": {External: Always}, "over the limit": {MaxFile: 1}} {
			path := filepath.Join(t.TempDir(), "m.onnx")
			if err := m.Save(path, o); err != nil {
				t.Errorf("%s %s: %v", f, name, err)
				continue
			}
			again := openModel(t, path)
			want := loaded(t, m)
			if m.Proto.GetIrVersion() < 4 { // an initializer that is no input needs 4
				want.IrVersion = again.Proto.IrVersion
			}
			if d := cmp.Diff(want, loaded(t, again), protocmp.Transform()); d != "" {
				t.Errorf("%s %s (-want +got):\n%s", f, name, d)
			}
		}
		m.Close()
	}
}

func TestUnknownFieldsSurvive(t *testing.T) {
	unknown := protowire.AppendString(protowire.AppendTag(nil, 4000, protowire.BytesType), "from the future")
	p := relu(LargeTensor)
	for _, msg := range []proto.Message{p, p.Graph, p.Graph.Node[0], p.Graph.Initializer[0], p.Graph.Input[0]} {
		msg.ProtoReflect().SetUnknown(unknown)
	}
	m := openModel(t, write(t, "m.onnx", marshal(t, p)))
	for _, o := range []SaveOptions{{}, {External: Always}, {IR: 10}} {
		path := filepath.Join(t.TempDir(), "again.onnx")
		if err := m.Save(path, o); err != nil {
			t.Fatal(err)
		}
		q := openRaw(t, path)
		for _, msg := range []proto.Message{q, q.Graph, q.Graph.Node[0], q.Graph.Initializer[0], q.Graph.Input[0]} {
			if !bytes.Equal(msg.ProtoReflect().GetUnknown(), unknown) {
				t.Errorf("%T lost its unknown field with %+v", msg, o)
			}
		}
	}
}

func TestExternalTensorsAreAlignedAndBeside(t *testing.T) {
	p := relu(LargeTensor)
	p.Graph.Initializer = append(p.Graph.Initializer, NewTensor("v", tensor.FromFloat32s([]int64{LargeTensor + 1}, make([]float32, LargeTensor+1))), NewTensor("s", tensor.FromFloat32s([]int64{1}, []float32{1})))
	m := openModel(t, write(t, "in.onnx", marshal(t, p)))
	dir := t.TempDir()
	if err := m.Save(filepath.Join(dir, "out.onnx"), SaveOptions{External: Always}); err != nil {
		t.Fatal(err)
	}
	out := openModel(t, filepath.Join(dir, "out.onnx"))
	if d := cmp.Diff([]string{"out.onnx.data"}, out.DataFiles()); d != "" {
		t.Errorf("data files (-want +got):\n%s", d)
	}
	for i, w := range out.Graph().Initializer[:2] {
		s, err := out.spanOf("", w)
		if err != nil || s.offset%Alignment != 0 || (i == 1) != (s.offset > 0) {
			t.Errorf("%s lies at %d, %v", w.GetName(), s.offset, err)
		}
	}
	if small := out.Graph().Initializer[2]; small.GetDataLocation() == onnxpb.TensorProto_EXTERNAL {
		t.Error("a small tensor was put outside")
	}
	// And back into one file.
	if err := out.Save(filepath.Join(dir, "back.onnx"), SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	back := openModel(t, filepath.Join(dir, "back.onnx"))
	if len(back.DataFiles()) != 0 {
		t.Errorf("data files are %v", back.DataFiles())
	}
	if d := cmp.Diff(loaded(t, m), loaded(t, back), protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSavingTwiceGivesTheSameBytes(t *testing.T) {
	m := openModel(t, write(t, "in.onnx", marshal(t, relu(LargeTensor))))
	for _, o := range []SaveOptions{{}, {External: Always}} {
		var first [][]byte
		for range 2 {
			dir := t.TempDir()
			if err := m.Save(filepath.Join(dir, "m.onnx"), o); err != nil {
				t.Fatal(err)
			}
			var all [][]byte
			files, _ := filepath.Glob(filepath.Join(dir, "*"))
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, b)
			}
			if first == nil {
				first = all
			} else if d := cmp.Diff(first, all); d != "" {
				t.Error("two saves differ")
			}
		}
	}
}

func TestSavingALargeModelTakesLittleMemory(t *testing.T) {
	in := filepath.Join(t.TempDir(), "big.onnx")
	const size = 256 << 20
	writeSparseModel(t, in, size)
	m := openModel(t, in)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, o := range []SaveOptions{{}, {External: Always}} {
		if err := m.Save(filepath.Join(t.TempDir(), "out.onnx"), o); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("saving 256 MiB twice allocated %d bytes", grown)
	}
}

func TestModelOverTheLimitOfAFileGetsExternalData(t *testing.T) {
	in := filepath.Join(t.TempDir(), "big.onnx")
	writeSparseModel(t, in, 3<<20)
	m := openModel(t, in)
	out := filepath.Join(t.TempDir(), "out.onnx")
	if err := m.Save(out, SaveOptions{MaxFile: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if files := openModel(t, out).DataFiles(); len(files) != 1 {
		t.Errorf("data files are %v", files)
	}
}

func TestNothingIsOverwritten(t *testing.T) {
	m := New(relu(LargeTensor), "")
	dir := t.TempDir()
	taken := filepath.Join(dir, "m.onnx")
	if err := os.WriteFile(taken, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(taken, SaveOptions{}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error is %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "n.onnx.data"), []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(filepath.Join(dir, "n.onnx"), SaveOptions{External: Always}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error is %v", err)
	}
	if err := m.Save(filepath.Join(dir, "no", "folder.onnx"), SaveOptions{}); failure.CodeOf(err) != failure.Artifact {
		t.Errorf("error is %v", err)
	}
	if b, _ := os.ReadFile(taken); string(b) != "mine" {
		t.Error("a file was overwritten")
	}
}

func TestDataFileThatVanishesWhileSavingIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := New(relu(LargeTensor), dir).Save(filepath.Join(dir, "m.onnx"), SaveOptions{External: Always}); err != nil {
		t.Fatal(err)
	}
	m := openModel(t, filepath.Join(dir, "m.onnx"))
	if err := os.Remove(filepath.Join(dir, "m.onnx.data")); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(filepath.Join(dir, "out.onnx"), SaveOptions{}); err == nil || !strings.Contains(err.Error(), `"w"`) {
		t.Errorf("error is %v", err)
	}
}

func TestIRVersionIsWhatIsAskedForAndEnough(t *testing.T) {
	m := New(relu(2), "")
	old := relu(2)
	old.IrVersion = ptr(int64(3))
	quantized := relu(0)
	quantized.Graph.Initializer = []*onnxpb.TensorProto{{Name: ptr("q"), DataType: ptr(int32(onnxpb.TensorProto_INT4)), Dims: []int64{2}, RawData: []byte{0x21}}}
	withFunction := relu(2)
	function(withFunction, withFunction.Graph.Initializer[0])
	tests := map[string]struct {
		m    *Model
		ir   int64
		want int64
		err  string
	}{
		"kept":                                  {m, 0, 9, ""},
		"asked for":                             {m, 10, 10, ""},
		"lowered":                               {m, 4, 4, ""},
		"raised for weights that are no inputs": {New(old, ""), 0, 4, ""},
		"too old for weights":                   {m, 3, 0, `initializer "w", which is not an input, needs 4`},
		"too old for int4":                      {New(quantized, ""), 9, 0, `tensor "q" of type int4 needs 10`},
		"raised for int4":                       {New(quantized, ""), 0, 10, ""},
		"too old for a function":                {New(withFunction, ""), 7, 0, "function acme.F needs 8"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.onnx")
			err := tt.m.Save(path, SaveOptions{IR: tt.ir})
			if tt.err != "" {
				if failure.CodeOf(err) != failure.Usage || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := openRaw(t, path).GetIrVersion(); got != tt.want {
				t.Errorf("IR version %d, want %d", got, tt.want)
			}
		})
	}
}

func TestMinimumIRNamesTheFeature(t *testing.T) {
	tests := map[string]struct {
		change func(p *onnxpb.ModelProto)
		want   Requirement
	}{
		"nothing special": {func(*onnxpb.ModelProto) {}, Requirement{3, "an ONNX graph"}},
		"quantization annotation": {func(p *onnxpb.ModelProto) {
			p.Graph.QuantizationAnnotation = []*onnxpb.TensorAnnotation{{TensorName: ptr("x")}}
		}, Requirement{5, "a quantization annotation"}},
		"sparse initializer": {func(p *onnxpb.ModelProto) { sparse(p, NewTensor("s", tensor.FromFloat32s([]int64{1}, []float32{1}))) }, Requirement{6, "a sparse initializer"}},
		"training info":      {func(p *onnxpb.ModelProto) { p.TrainingInfo = []*onnxpb.TrainingInfoProto{{}} }, Requirement{7, "training info"}},
		"function overload": {func(p *onnxpb.ModelProto) {
			p.Functions = []*onnxpb.FunctionProto{{Name: ptr("F"), Domain: ptr("d"), Overload: ptr("o")}}
		}, Requirement{10, "the overload of function d.F"}},
		"device configuration": {func(p *onnxpb.ModelProto) { p.Configuration = []*onnxpb.DeviceConfigurationProto{{}} }, Requirement{11, "a device configuration"}},
		"float8 value": {func(p *onnxpb.ModelProto) {
			p.Graph.ValueInfo = append(p.Graph.ValueInfo, info("v", onnxpb.TensorProto_FLOAT8E4M3FN))
		}, Requirement{9, `value "v" of type float8e4m3fn`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := relu(0)
			tt.change(p)
			if got := New(p, "").MinimumIR(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	if err := New(relu(0), "").Accepts(Runtime{Name: "r", IR: 8}); err == nil {
		t.Error("IR 9 is accepted by a runtime of 8")
	}
	p := relu(0)
	p.Graph.ValueInfo = append(p.Graph.ValueInfo, info("v", onnxpb.TensorProto_INT4))
	err, _ := New(p, "").Accepts(Runtime{Name: "r", IR: 8}).(*failure.Error)
	if err == nil || !strings.Contains(err.Hint, "needs IR 10: use a newer runtime") {
		t.Errorf("error is %+v", err)
	}
}
