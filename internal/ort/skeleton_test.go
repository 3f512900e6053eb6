package ort

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxtest"
	"github.com/trtship/trtship/internal/tensor"
	"google.golang.org/protobuf/proto"
)

// noise returns seeded values.
func noise(seed uint64, shape ...int64) tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
	v := make([]float32, tensor.Elements(shape))
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return tensor.FromFloat32s(shape, v)
}

// TestWeightsAreReadWhereTheyLieInTheFile shifts the weights of a model to every
// alignment: the runtime maps them from the model's own file, and must compute
// what it computes from the model as it is.
func TestWeightsAreReadWhereTheyLieInTheFile(t *testing.T) {
	x := noise(1, 2, 32, 8, 8)
	for shift := range 8 {
		b := onnxtest.New(17).Input("x", tensor.Float32, "n", 32, 8, 8).Output("y", tensor.Float32, "n", 64)
		b.Init("w", noise(2, 64, 32, 3, 3)).Init("g", noise(3, 4096, 64)).Init("m", noise(4, 64, 300)).Init("k", noise(5, 300, 64))
		b.Node("Conv", "x w", "c", onnxtest.Ints("pads", 1, 1, 1, 1)).Node("Relu", "c", "r").Node("Flatten", "r", "f")
		b.Node("Gemm", "f g", "e").Node("MatMul", "e m", "h").Node("MatMul", "h k", "i")
		b.Node("Constant", "", "big", onnxtest.Tensor("value", noise(6, 2, 64*256))).Node("ReduceMax", "big", "top", onnxtest.Int("keepdims", 0))
		b.Node("Add", "i top", "y")
		p := b.Proto()
		p.ProducerName = proto.String("test" + strings.Repeat("x", shift))
		// The name lies in front of the graph.
		raw, err := proto.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "model.onnx")
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		lean, err := onnx.Skeleton(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(lean) > len(raw)/4 {
			t.Errorf("the message still has %d of %d bytes", len(lean), len(raw))
		}
		feed := []tensor.Named{{Name: "x", Tensor: x}}
		want := infer(t, open(t, path, Options{}), feed)
		got := infer(t, open(t, path, Options{ExtraOutputs: []string{"c", "e"}}), feed)
		if !want[0].Tensor.Equal(got[0].Tensor) || got[1].Elements() != 2*64*64 {
			t.Errorf("shifted by %d bytes the model computes something else", shift)
		}
		// Links cannot be referred to: then all is in the message.
		link := filepath.Join(t.TempDir(), "link.onnx")
		for _, make := range []func(old, new string) error{os.Symlink, os.Link} {
			if err := make(path, link); err != nil {
				t.Fatal(err)
			}
			whole, err := onnx.Skeleton(link)
			if err != nil || len(whole) != len(raw) {
				t.Errorf("through a link: %d bytes, %v", len(whole), err)
			}
			if got := infer(t, open(t, link, Options{ExtraOutputs: []string{"c"}}), feed); !want[0].Tensor.Equal(got[0].Tensor) {
				t.Error("through a link the model computes something else")
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := onnx.Skeleton(filepath.Join(t.TempDir(), "none.onnx")); err == nil {
		t.Error("a model that is not there has a skeleton")
	}
}
