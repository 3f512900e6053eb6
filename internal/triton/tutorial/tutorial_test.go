package tutorial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/trtship/trtship/internal/proc"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

var dir = filepath.Join("..", "..", "..", "testdata", "tutorial")

func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func TestLintNamesEveryMistakeOfTheTutorialsFiles(t *testing.T) {
	var want map[string][]string
	readYAML(t, "expect.yaml", &want)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		seen++
		t.Run(e.Name(), func(t *testing.T) {
			found, err := lint.Dir(t.Context(), filepath.Join(dir, e.Name()), lint.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, f := range found {
				if f.Severity != lint.Note {
					got = append(got, f.Place()+" "+f.Rule)
				}
			}
			if d := cmp.Diff(want[e.Name()], got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
	if seen != len(want) {
		t.Errorf("%d folders, %d expectations", seen, len(want))
	}
}

// claim is a statement of the tutorial.
type claim struct {
	ID, Says, Holds, How, Shown string
}

// copyModel puts a folder's model into a repository under another name.
func copyModel(t *testing.T, folder, repository, name string, edit func(string) string) {
	t.Helper()
	to := filepath.Join(repository, name)
	tritontest.CopyTree(t, filepath.Join(dir, folder, "mnist"), to)
	path := filepath.Join(to, "config.pbtxt")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), `"mnist"`, fmt.Sprintf("%q", name), 1)
	if edit != nil {
		text = edit(text)
	}
	tritontest.Write(t, to, "config.pbtxt", text)
}

// world is one real server with all the tutorial's cases in it.
type world struct {
	t          *testing.T
	s          *server.Server
	client     kserve.Client
	repository string
	said       map[string]string // load errors by model
	ready      map[string]bool   // "model/version"
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, repository: filepath.Join(t.TempDir(), "any-name"), said: map[string]string{}, ready: map[string]bool{}}
	copyModel(t, "corrected", w.repository, "mnist", nil)
	tritontest.CopyTree(t, filepath.Join(dir, "corrected_v2", "mnist", "2"), filepath.Join(w.repository, "mnist", "2"))
	copyModel(t, "zero", w.repository, "zero", nil)
	copyModel(t, "corrected", w.repository, "latest", nil)
	if err := os.Rename(filepath.Join(w.repository, "latest", "1"), filepath.Join(w.repository, "latest", "latest")); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"no_version", "policy", "moved", "fixed_batch", "other_names"} {
		copyModel(t, f, w.repository, f, nil)
	}
	copyModel(t, "corrected", w.repository, "upper", func(s string) string { return strings.Replace(s, `"upper"`, `"Upper"`, 1) })
	copyModel(t, "corrected", w.repository, "tabs", func(s string) string { return strings.ReplaceAll(s, "  ", "\t") })
	copyModel(t, "moved", w.repository, "two_mistakes", func(s string) string { return strings.Replace(s, "max_batch_size", "max_batch", 1) })
	w.s = tritontest.Start(t, server.Options{Repositories: []string{w.repository}, KeepGoing: true, Verbose: true})
	var err error
	if w.client, err = w.s.Client(kserve.HTTP); err != nil {
		t.Fatal(err)
	}
	for _, e := range w.s.LoadErrors() {
		w.said[e.Model] += e.Text + " " + strings.Join(e.Parser, " ")
	}
	w.refresh()
	return w
}

func (w *world) refresh() {
	w.t.Helper()
	index, err := w.client.Index(w.t.Context(), true)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range index {
		w.ready[m.GetName()+"/"+m.GetVersion()] = m.GetState() == "READY"
	}
}

func images(n int64) tensor.Named {
	values := make([]float32, n*28*28)
	for i := range values {
		values[i] = float32(i%17) / 17
	}
	return tritontest.Tensor("INPUT__0", []int64{n, 1, 28, 28}, values...)
}

func (w *world) infer(t *testing.T, n int64) ([]tensor.Named, error) {
	t.Helper()
	return kserve.Model{Client: w.client, Name: "mnist"}.Infer(t.Context(), []tensor.Named{images(n)})
}

// saysWhy demands that a model did not load and why.
func (w *world) saysWhy(t *testing.T, model, why string) {
	t.Helper()
	if w.ready[model+"/1"] || !strings.Contains(w.said[model], why) {
		t.Errorf("%s: ready %v, server said %q, want %q", model, w.ready[model+"/1"], w.said[model], why)
	}
}

// shown are the claims that the real server was asked about: what is true, as
// claims.yaml says it.
var shown = map[string]func(t *testing.T, w *world){
	"batch-above-limit": func(t *testing.T, w *world) {
		_, err := w.infer(t, 200)
		if e, ok := errors.AsType[*kserve.ServerError](err); !ok || !strings.Contains(e.Text, "batch-size must be <= 128") {
			t.Errorf("got %v", err)
		}
	},
	"default-control-mode": func(t *testing.T, w *world) {
		if b, _ := os.ReadFile(w.s.Log); !strings.Contains(string(b), "MODE_NONE") {
			t.Error("the server does not say MODE_NONE")
		}
	},
	"new-version-is-seen": func(t *testing.T, w *world) {
		tritontest.CopyTree(t, filepath.Join(dir, "corrected", "mnist", "1"), filepath.Join(w.repository, "mnist", "3"))
		time.Sleep(time.Second) // the server's poll thread, if there were one, wakes every second at least
		w.refresh()
		if w.ready["mnist/3"] || !w.ready["mnist/2"] {
			t.Errorf("version 3 was noticed: %v", w.ready)
		}
	},
	"latest-version-alone": func(t *testing.T, w *world) {
		if !w.ready["mnist/2"] || w.ready["mnist/1"] {
			t.Errorf("%v", w.ready)
		}
	},
	"version-zero": func(t *testing.T, w *world) {
		if !w.ready["zero/0"] {
			t.Errorf("%v %v", w.ready, w.said["zero"])
		}
	},
	"version-latest": func(t *testing.T, w *world) { w.saysWhy(t, "latest", "at least one version must be available") },
	"no-version-message": func(t *testing.T, w *world) {
		w.saysWhy(t, "no_version", "at least one version must be available under the version policy")
	},
	"version-policy-syntax": func(t *testing.T, w *world) { w.saysWhy(t, "policy", "failed to read text proto") },
	"batching-option":       func(t *testing.T, w *world) { w.saysWhy(t, "moved", `no field named "batching_option"`) },
	"name-equals-folder":    func(t *testing.T, w *world) { w.saysWhy(t, "upper", "directory name must equal model name") },
	"fixed-batch":           func(t *testing.T, w *world) { w.saysWhy(t, "fixed_batch", "the first dimension must be -1") },
	"fixed-batch-request":   func(t *testing.T, w *world) { w.saysWhy(t, "fixed_batch", "support batching") },
	"wrong-input-name":      func(t *testing.T, w *world) { w.saysWhy(t, "other_names", "unexpected inference input 'INPUT__0'") },
	"first-error-only": func(t *testing.T, w *world) {
		w.saysWhy(t, "two_mistakes", `no field named "max_batch"`)
		if strings.Contains(w.said["two_mistakes"], "batching_option") {
			t.Error("the parser named the second mistake")
		}
	},
	"tabs": func(t *testing.T, w *world) {
		if !w.ready["tabs/1"] {
			t.Errorf("%v", w.said["tabs"])
		}
	},
	"models-folder-name": func(t *testing.T, w *world) {
		if filepath.Base(w.repository) == "models" || !w.ready["mnist/2"] {
			t.Error("the repository is called models")
		}
	},
	"confidence": func(t *testing.T, w *world) {
		out, err := w.infer(t, 4)
		if err != nil {
			t.Fatal(err)
		}
		if top := slices.Max(tritontest.Floats(out[0].Tensor)); top > 0 {
			t.Errorf("the largest output of a log_softmax is %g", top)
		}
	},
	"json-request": func(t *testing.T, w *world) {
		c, err := kserve.Open(kserve.Options{Protocol: kserve.HTTP, Address: w.s.HTTP, JSON: true})
		if err != nil {
			t.Fatal(err)
		}
		out, err := kserve.Model{Client: c, Name: "mnist"}.Infer(t.Context(), []tensor.Named{images(1)})
		if err != nil || out[0].Name != "OUTPUT__0" || len(out[0].Shape) != 2 || out[0].Shape[1] != 10 {
			t.Errorf("%v %v", out, err)
		}
	},
	"ports": func(t *testing.T, w *world) {
		help := run(t, "--help")
		for _, s := range []string{"Default is 8000", "Default is 8001", "Default is 8002"} {
			if !strings.Contains(help, s) {
				t.Errorf("--help does not say %q", s)
			}
		}
	},
	"verbose-flag": func(t *testing.T, w *world) {
		if out := run(t, "-v"); !strings.Contains(out, "invalid option") && !strings.Contains(out, "unrecognized option") {
			t.Errorf("tritonserver -v: %s", out)
		}
	},
	"explicit-load":      func(t *testing.T, _ *world) { explicit(t, "load") },
	"unload-before-load": func(t *testing.T, _ *world) { explicit(t, "gap") },
}

// byHand are shown without the server.
var byHand = map[string]func(t *testing.T){
	"config-in-version-folder": func(t *testing.T) {
		found, err := lint.Dir(t.Context(), filepath.Join(dir, "quoted"), lint.Options{})
		if err != nil || !slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Rule == "layout/config-in-version" }) {
			t.Errorf("%v %v", found, err)
		}
	},
	"state-dict": func(t *testing.T) {
		repository := t.TempDir()
		tritontest.Write(t, repository, "m/config.pbtxt", `platform: "pytorch_libtorch"`)
		tritontest.Write(t, repository, "m/1/model.pt", "PK weights")
		found, err := lint.Dir(t.Context(), repository, lint.Options{})
		if err != nil || !slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Rule == "model/state-dict" }) {
			t.Errorf("%v %v", found, err)
		}
	},
	"blank-is-zero": func(t *testing.T) {
		if x := images(1); slices.Max(tritontest.Floats(x.Tensor)) == 0 {
			t.Error("the test's own image is blank")
		}
	},
	"binary-is-smaller": func(t *testing.T) {
		r := kserve.Request{Model: "mnist", Inputs: []tensor.Named{images(8)}}
		text, _, err := kserve.EncodeHTTP(r, kserve.Form{Text: true})
		if err != nil {
			t.Fatal(err)
		}
		head, raw, err := kserve.EncodeHTTP(r, kserve.Form{})
		if err != nil || len(head)+len(raw[0]) >= len(text) {
			t.Errorf("binary %d, JSON %d bytes, %v", len(head)+len(raw[0]), len(text), err)
		}
	},
	"perf-range": func(t *testing.T) {
		var got []int
		for n := 1; n <= 32; n += 4 {
			got = append(got, n)
		}
		if !slices.Equal(got, []int{1, 5, 9, 13, 17, 21, 25, 29}) {
			t.Error(got)
		}
	},
}

func TestEveryClaimThatCanBeShownIs(t *testing.T) {
	var claims []claim
	readYAML(t, "claims.yaml", &claims)
	if len(claims) < 35 {
		t.Errorf("%d claims", len(claims))
	}
	w := newWorld(t)
	used := map[string]bool{}
	for _, c := range claims {
		if used[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		used[c.ID] = true
		if c.Says == "" || c.Shown == "" || !slices.Contains([]string{"yes", "no", "partly"}, c.Holds) {
			t.Errorf("%+v is not complete", c)
		}
		switch c.How {
		case "server":
			show, ok := shown[c.ID]
			if !ok {
				t.Errorf("nothing asks the server about %s", c.ID)
				continue
			}
			t.Run(c.ID, func(t *testing.T) { show(t, w) })
		case "lint", "arithmetic":
			if show, ok := byHand[c.ID]; ok {
				t.Run(c.ID, show)
			} else if c.ID != "perf-input" { // shown in package load, whose reader it is
				t.Errorf("nothing shows %s", c.ID)
			}
		case "source", "unknown":
		default:
			t.Errorf("%s: how %q", c.ID, c.How)
		}
	}
	for id := range shown {
		if !used[id] {
			t.Errorf("%s is shown, but is no claim", id)
		}
	}
}

// run starts tritonserver with one argument and returns what it prints.
func run(t *testing.T, arg string) string {
	t.Helper()
	in := tritontest.Installation(t)
	var out, errs bytes.Buffer
	_ = proc.Run(t.Context(), proc.Command{Path: in.Binary, Args: []string{arg}, Env: in.Environment(), Stdout: &out, Stderr: &errs}) // it ends with 1 in both cases
	return out.String() + errs.String()
}

// explicit starts a server in explicit mode and shows loading, or the gap
// between unload and load.
func explicit(t *testing.T, what string) {
	t.Helper()
	repository := t.TempDir()
	copyModel(t, "corrected", repository, "mnist", nil)
	s := tritontest.Start(t, server.Options{Repositories: []string{repository}, Control: "explicit"})
	post := func(verb string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v2/repository/models/mnist/"+verb, nil)
		if err != nil {
			t.Fatal(err)
		}
		reply, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(reply.Body)
		_ = reply.Body.Close()
		if reply.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", verb, b)
		}
	}
	c, err := s.Client(kserve.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	infer := func() error {
		_, err := kserve.Model{Client: c, Name: "mnist"}.Infer(context.WithoutCancel(t.Context()), []tensor.Named{images(1)})
		return err
	}
	if err := infer(); err == nil {
		t.Error("the model is there before it was loaded")
	}
	post("load")
	if err := infer(); err != nil {
		t.Error(err)
	}
	if what == "load" {
		return
	}
	post("unload")
	deadline := time.Now().Add(10 * time.Second)
	for infer() == nil {
		if time.Now().After(deadline) {
			t.Fatal("requests are answered after unload")
		}
	}
	post("load")
	if err := infer(); err != nil {
		t.Error(err)
	}
}

// The corrected tutorial from start to end: version 1 in explicit mode, dynamic
// batching under load, a binary request, version 2 by load, and back.
func TestTheCorrectedTutorialRuns(t *testing.T) {
	repository := t.TempDir()
	copyModel(t, "corrected", repository, "mnist", nil)
	s := tritontest.Start(t, server.Options{Repositories: []string{repository}, Control: "explicit", Load: []string{"mnist"}, Wait: []server.Want{{Model: "mnist", Version: "1"}}})
	c, err := s.Client(kserve.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (string, []float32) {
		t.Helper()
		r, err := c.Infer(t.Context(), kserve.Request{Model: "mnist", Inputs: []tensor.Named{images(1)}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Version, tritontest.Floats(r.Outputs[0].Tensor)
	}
	version, first := ask()
	if version != "1" {
		t.Errorf("version %s answers", version)
	}
	done := make(chan error, 16)
	for range 16 {
		go func() {
			for range 20 {
				if _, err := (kserve.Model{Client: c, Name: "mnist"}).Infer(t.Context(), []tensor.Named{images(2)}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 16 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	stats, err := c.Statistics(t.Context(), "mnist", "1")
	if err != nil {
		t.Fatal(err)
	}
	if n, runs := stats[0].GetInferenceStats().GetSuccess().GetCount(), stats[0].GetExecutionCount(); runs >= n {
		t.Errorf("%d requests in %d executions: nothing was merged", n, runs)
	}
	tritontest.CopyTree(t, filepath.Join(dir, "corrected_v2", "mnist", "2"), filepath.Join(repository, "mnist", "2"))
	if err := c.Load(t.Context(), "mnist", nil); err != nil {
		t.Fatal(err)
	}
	version, second := ask()
	if version != "2" || cmp.Equal(first, second) {
		t.Errorf("after the load version %s answers, equal to the first: %v", version, cmp.Equal(first, second))
	}
	if err := os.RemoveAll(filepath.Join(repository, "mnist", "2")); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(t.Context(), "mnist", nil); err != nil {
		t.Fatal(err)
	}
	if version, back := ask(); version != "1" || !cmp.Equal(first, back) {
		b, _ := json.Marshal([][]float32{first, back})
		t.Errorf("after the rollback version %s answers: %s", version, b)
	}
}
