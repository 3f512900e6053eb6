package precision

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/tensor"
)

func TestDev(t *testing.T) {
	dir := os.Getenv("DEVDIR")
	for _, name := range []string{"digits", "resnet18", "encoder"} {
		m, err := onnx.Open(filepath.Join(dir, name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		scales := map[string]float32{}
		for _, a := range Activations(m) {
			scales[a.Name] = 0.05
		}
		for _, d := range []tensor.DType{tensor.Float16, tensor.BFloat16} {
			for _, em := range []bool{false, true} {
				h, err := ToHalf(m, HalfOptions{DType: d, KeepIO: true, Emulate: em})
				if err != nil {
					t.Fatal(err)
				}
				fmt.Println(name, d, em, "low", h.Low, "casts", h.Casts, "kept", h.Kept, h.Ranges)
				out := filepath.Join(dir, fmt.Sprintf("%s.%s.%v.onnx", name, d, em))
				os.Remove(out)
				if err := h.Model.Check(); err != nil {
					t.Error(err)
				}
				if err := h.Model.Save(out, onnx.SaveOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		q, err := ToInt8(m, Int8Options{Scales: scales, PerChannel: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(name, "int8", len(q.Nodes), len(q.Activations), q.Weights, q.Skipped)
		if err := q.Model.Check(); err != nil {
			t.Error(err)
		}
		out := filepath.Join(dir, name+".int8.onnx")
		os.Remove(out)
		if err := q.Model.Save(out, onnx.SaveOptions{}); err != nil {
			t.Fatal(err)
		}
		q, err = ToInt8(m, Int8Options{Scales: scales, PerChannel: true, HalfScales: true})
		if err != nil {
			t.Fatal(err)
		}
		r, err := RaiseOpset(q.Model)
		if err != nil {
			t.Fatal(err)
		}
		h, err := ToHalf(r, HalfOptions{DType: tensor.Float16, KeepIO: true})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println(name, "int8+fp16", "low", h.Low, "casts", h.Casts, "kept", h.Kept, h.Ranges)
		out = filepath.Join(dir, name+".int8fp16.onnx")
		os.Remove(out)
		if err := h.Model.Check(); err != nil {
			t.Error(err)
		}
		if err := h.Model.Save(out, onnx.SaveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
