package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/store"
)

func TestSumIsTheDigestThatPuttingWouldGive(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's store
	for name, files := range map[string]map[string]string{
		"one file": {"model.plan": "plan"}, "several": {"model.plan": "plan", "sub/engine.json": "{}"}, "an empty one": {"a": "", "b": "b"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, size := t.TempDir(), int64(0)
			for n, text := range files {
				path := filepath.Join(dir, filepath.FromSlash(n))
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				size += int64(len(text))
			}
			sum, err := s.Sum(t.Context(), dir, size)
			if err != nil {
				t.Fatal(err)
			}
			put, err := s.Put(t.Context(), store.Draft{Kind: artifact.Engine, Label: name}, store.Source{Path: dir})
			if err != nil || put.Digest != sum {
				t.Errorf("sum %s, digest in the store %s, %v", sum, put.Digest, err)
			}
			for _, other := range []int64{size - 1, size + 1, -1} {
				if _, err := s.Sum(t.Context(), dir, other); err == nil || !strings.Contains(err.Error(), "bytes") {
					t.Errorf("size %d: %v", other, err)
				}
			}
		})
	}
	if _, err := s.Sum(t.Context(), filepath.Join(t.TempDir(), "none"), 1); err == nil {
		t.Error("a folder that is not there has a digest")
	}
}
