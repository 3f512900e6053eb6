package onnx

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"google.golang.org/protobuf/proto"
)

// FuzzOpen reads anything: it must not panic, its errors must have a code, and
// what it accepts must be the same model after it was saved and read again.
func FuzzOpen(f *testing.F) {
	files, err := filepath.Glob(caseFile("*", "*.onnx"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b, dir)
		if err != nil {
			if c := failure.CodeOf(err); c != failure.Model && c != failure.Artifact {
				t.Fatalf("code %d: %v", c, err)
			}
			return
		}
		m.Inputs()
		m.Outputs()
		m.Operators()
		m.MinimumIR()
		NewIndex(m.Graph())
		w := &writer{model: m}
		pieces, err := w.encode(m.Proto, kindModel)
		if err != nil {
			t.Fatal(err)
		}
		var again []byte
		for _, p := range pieces {
			if p.tensor != nil {
				p.bytes = p.tensor.RawData
			}
			again = append(again, p.bytes...)
		}
		m2, err := Parse(again, dir)
		if err != nil {
			t.Fatalf("the model does not read after it was written: %v", err)
		}
		if !proto.Equal(m.Proto, m2.Proto) {
			t.Fatal("the model changed when it was written")
		}
	})
}
