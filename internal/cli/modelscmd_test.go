package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// tritonWith is a server in explicit mode: it has a repository, and unloads
// whatever it is asked to, as Triton does.
func tritonWith(t *testing.T, all, ready string) (address string, unloads *atomic.Int64) {
	t.Helper()
	unloads = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/repository/index":
			var asked struct{ Ready bool }
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, map[bool]string{false: all, true: ready}[asked.Ready])
		case strings.HasSuffix(r.URL.Path, "/unload"):
			unloads.Add(1)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), unloads
}

func TestOnlyAModelThatTheServerKnowsIsUnloaded(t *testing.T) {
	const (
		loaded = `{"name":"mnist","version":"1","state":"UNAVAILABLE","reason":"unloaded"},{"name":"mnist","version":"2","state":"READY"}`
		idle   = `{"name":"digits"}`
		was    = `{"name":"encoder","version":"1","state":"UNAVAILABLE","reason":"unloaded"}`
	)
	tests := map[string]struct {
		all, ready, model string
		code              failure.Code
		want              string
	}{
		"one that is loaded":          {loaded + "," + idle, loaded, "mnist", failure.OK, "unloaded mnist\n"},
		"one that never was":          {loaded + "," + idle, loaded, "digits", failure.OK, "digits was not loaded\n"},
		"one that was":                {was, "", "encoder", failure.OK, "encoder was not loaded\n"},
		"one whose folder is gone":    {idle, loaded, "mnist", failure.OK, "unloaded mnist\n"},
		"a name that it has not":      {idle + "," + loaded, loaded, "mnsit", failure.Triton, "unload mnsit: the server knows no model of this name\nhint: it knows digits, mnist\n"},
		"the beginning of a name":     {loaded, loaded, "mni", failure.Triton, "hint: it knows mnist\n"},
		"any name if there are none":  {"", "", "mnist", failure.Triton, "hint: its repository is empty\n"},
		"a name that is only a state": {idle, "", "READY", failure.Triton, "hint: it knows digits\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			address, unloads := tritonWith(t, "["+tt.all+"]", "["+tt.ready+"]")
			out, errs := newBench(t).run(tt.code, "models", "unload", tt.model, "--http", address)
			contains(t, errs, tt.want)
			if want := map[bool]int64{true: 1}[tt.code == failure.OK]; unloads.Load() != want || out != "" {
				t.Errorf("%d requests to unload, stdout %q", unloads.Load(), out)
			}
		})
	}
}

// TestWhatAServerRefusesIsExit10 has a server that is ready and refuses the rest.
func TestWhatAServerRefusesIsExit10(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ready") {
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"Request for unknown model: it is not found"}`)
	}))
	defer s.Close()
	address, cfg := strings.TrimPrefix(s.URL, "http://"), example(t, "onnx")
	for _, args := range [][]string{
		{"models", "ls"},
		{"models", "load", "x"},
		{"models", "unload", "x"},
		{"models", "stats", "x"},
		{"infer", "x", "--input", "x=" + npyFile(t)},
		{"validate", "triton", cfg},
		{"benchmark", "triton", cfg, "--window", "200ms"},
	} {
		_, errs := newBench(t).run(failure.Triton, append(args, "--http", address)...)
		contains(t, errs, "Request for unknown model: it is not found")
		if strings.Contains(errs, "bug") {
			t.Errorf("%v: a refusal is called a bug:\n%s", args, errs)
		}
	}
}

func npyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.npy")
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(tensor.WriteNPY(f, tensor.Zeros(tensor.Float32, 1)), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
