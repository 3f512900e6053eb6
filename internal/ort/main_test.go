package ort

import (
	"path/filepath"
	"testing"

	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
)

func TestMain(m *testing.M) {
	goWrongIfAsked()
	RunChildIfAsked()
	testkit.Main(m)
}

func library(t testing.TB) Library {
	t.Helper()
	lib, err := Find(t.Context(), Places{File: testkit.ORTLibrary(t)})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func caseFile(t testing.TB, parts ...string) string {
	t.Helper()
	return filepath.Join(append([]string{testkit.Root(t), "testdata", "cases"}, parts...)...)
}

func caseFeed(t testing.TB, parts ...string) []tensor.Named {
	t.Helper()
	feed, err := tensor.ReadNPZ(caseFile(t, parts...))
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

func open(t testing.TB, model string, o Options) *Session {
	t.Helper()
	s, err := Open(t.Context(), library(t), model, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func infer(t testing.TB, s *Session, feed []tensor.Named) []tensor.Named {
	t.Helper()
	out, err := s.Infer(t.Context(), feed)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
