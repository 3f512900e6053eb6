package ort

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/tensor"
)

func TestMain(m *testing.M) { RunChildIfAsked(); os.Exit(m.Run()) }

func TestSpike(t *testing.T) {
	ctx := context.Background()
	lib, err := Find(ctx, Places{File: os.Getenv("TRTSHIP_ORT_LIB"), Python: os.Getenv("TRTSHIP_PYTHON")})
	t.Log(lib, err)
	files, _ := filepath.Glob("../../testdata/cases/*/*.onnx")
	for _, f := range files {
		s, err := Open(ctx, lib, f, Options{})
		if err != nil {
			t.Logf("%s: LOAD %v", filepath.Base(filepath.Dir(f))+"/"+filepath.Base(f), err)
			continue
		}
		feeds, _ := filepath.Glob(filepath.Join(filepath.Dir(f), "feed*.npz"))
		for _, p := range feeds {
			feed, err := tensor.ReadNPZ(p)
			if err != nil {
				t.Error(err)
				continue
			}
			out, err := s.Infer(ctx, feed)
			t.Logf("%s %s: %v", f, filepath.Base(p), err)
			for _, o := range out {
				t.Log("   ", o.Name, o.DType, o.Shape, o.Strings, o.Elements())
			}
		}
		s.Close()
	}
}
