package lint_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

var cases = filepath.Join("..", "..", "..", "testdata", "cases")

// What is found in every field failure, notes left out except where the note is
// the point.
var want = map[string][]string{
	"s02-layout/config_in_version_dir": {"config_in_version_dir/1/config.pbtxt: error: config.pbtxt lies in the version folder and is not read (move it up into config_in_version_dir/) [layout/config-in-version]"},
	"s02-layout/dir_name":              {`dir_name/config.pbtxt:2:1: error: the model is called "other_name", its folder "dir_name" (they must be equal, also in upper and lower case) [layout/directory-name]`},
	"s02-layout/labels_count":          {"labels_count/config.pbtxt:6:55: warning: labels.txt has 3 labels, output y has 4 classes (one line a class) [layout/labels-count]"},
	"s02-layout/labels_missing":        {"labels_missing/config.pbtxt:6:55: error: the label file labels.txt is not in the model's folder (put it beside config.pbtxt) [layout/labels-missing]"},
	"s02-layout/no_name":               {},
	"s02-layout/no_platform":           {`no_platform/config.pbtxt:1:1: warning: neither backend nor platform is given: onnxruntime is guessed from the file's name (write backend: "onnxruntime") [layout/backend-guess]`},
	"s02-layout/no_version_dir":        {"no_version_dir: error: there is no version folder; model.onnx lies beside config.pbtxt (move it to 1/model.onnx) [layout/no-version]"},
	"s02-layout/plan_behind_onnx":      {"plan_behind_onnx/1: error: platform onnxruntime_onnx needs model.onnx, version 1 has only model.plan (change platform or backend, or package the model again) [layout/model-file]"},
	"s02-layout/platform_backend_pair": {`platform_backend_pair/config.pbtxt:3:1: error: platform "tensorrt_plan" and backend "onnxruntime" contradict each other (keep one of the two) [config/platform-backend]`},
	"s02-layout/version_backup":        {`version_backup/2_old: error: the folder "2_old" is read as version 2, and the folder 2 is then looked for (rename it so that it does not start with a digit, or move it out) [layout/version-suffix]`},
	"s02-layout/version_latest":        {`version_latest/latest: error: the folder "latest" holds a model, but its name is no number: it is ignored; no version is left (give it a number; the newest is the highest) [layout/version-name]`},
	"s02-layout/version_policy_absent": {"version_policy_absent/config.pbtxt:7:45: error: version 3 is asked for and is not there; the server loads the others without failing (add the folder, or take it from the list) [policy/absent]"},
	"s02-layout/version_zero_padded":   {`version_zero_padded/01: error: the version folder "01" is ignored: it starts with a zero; no version is left (rename it to 1) [layout/leading-zero]`},
	"s02-layout/versions_differ":       {"versions_differ/config.pbtxt:4:1: error: max_batch_size is 8, and version 2 does not take batches: x float32[1,4] (export it with a dynamic first dimension, or set max_batch_size: 0) [model/batch]"},
	"s02-layout/wrong_file_name":       {`wrong_file_name/1: error: version 1 has no model.onnx, but mnist.onnx (rename it, or write default_model_filename: "mnist.onnx") [layout/model-file]`},

	"s03-text/bom_crlf":                 {"bom_crlf/config.pbtxt:1:1: error: the file starts with a byte-order mark, which Triton's parser refuses (save the file as UTF-8 without one) [text/byte-order-mark]"},
	"s03-text/enum_without_prefix":      {"enum_without_prefix/config.pbtxt:5:32: error: DataType has no value FP32 (did you mean TYPE_FP32) [text/unknown-value]"},
	"s03-text/json_instead":             {`json_instead/config.pbtxt:1:1: error: this is JSON; config.pbtxt is protobuf text (write it as protobuf text, e.g.  name: "model") [text/json]`},
	"s03-text/max_batch_twice":          {"max_batch_twice/config.pbtxt:7:1: error: max_batch_size was already given at 4:1; Triton's parser refuses the second (keep one) [text/given-twice]"},
	"s03-text/missing_brace":            {"missing_brace/config.pbtxt:5:54: error: ']' where '}' must close the '{' opened at 5:9 (add '}' before it) [text/syntax]"},
	"s03-text/placeholder":              {"placeholder/config.pbtxt:4:17: error: the template placeholder ${triton_max_batch_size} was never filled (write the value) [text/placeholder]"},
	"s03-text/sequence_and_dynamic":     {"sequence_and_dynamic/config.pbtxt:7:37: error: the sequence control START is no input of the model (x) (sequence batching needs a model that takes it) [model/control]", "sequence_and_dynamic/config.pbtxt:8:1: error: dynamic_batching and sequence_batching are one choice (scheduling_choice): only one may be given (keep one of the two) [text/one-of]"},
	"s03-text/sequence_control":         {"sequence_control/config.pbtxt:7:37: error: the sequence control START is no input of the model (x) (sequence batching needs a model that takes it) [model/control]"},
	"s03-text/tutorial_batching_option": {`tutorial_batching_option/config.pbtxt:7:1: error: no field "batching_option" in ModelConfig (did you mean dynamic_batching, a message: dynamic_batching { ... }, not a list) [text/unknown-field]`},

	"s04-instance-groups/count_zero":      {"count_zero/config.pbtxt:7:20: note: count 0 is the same as none: the server takes its default, 2 instances for ONNX on a CPU (write the number) [instance/count]"},
	"s04-instance-groups/cpu_with_gpus":   {"cpu_with_gpus/config.pbtxt:7:44: error: KIND_CPU lists GPUs [0] (remove the list, or write kind: KIND_GPU) [instance/gpu-list]"},
	"s04-instance-groups/gpu_index":       {"gpu_index/config.pbtxt:7:52: error: GPU 6 is asked for, the server sees 2 (0 to 1) (CUDA_VISIBLE_DEVICES renumbers them from 0) [instance/no-gpu]"},
	"s04-instance-groups/gpu_without_gpu": {"gpu_without_gpu/config.pbtxt:7:29: error: KIND_GPU, and the server sees no GPU: the model does not load (give the server a GPU, or write kind: KIND_CPU) [instance/no-gpu]"},
	"s04-instance-groups/none":            {"none/config.pbtxt:1:1: note: there is no instance_group: the server chooses, and takes the CPU when it sees no GPU (write instance_group [ { kind: KIND_GPU count: 1 } ], or KIND_CPU) [instance/none]"},
	"s04-instance-groups/plan_on_cpu":     {"plan_on_cpu/config.pbtxt:7:20: error: KIND_CPU, and a TensorRT plan runs on a GPU only (write kind: KIND_GPU) [plan/device]"},
}

func folders(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, group := range []string{"s02-layout", "s03-text", "s04-instance-groups"} {
		entries, err := os.ReadDir(filepath.Join(cases, group))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				out = append(out, group+"/"+e.Name())
			}
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d repositories", len(out))
	}
	return out
}

func TestEveryFieldFailureHasItsFindings(t *testing.T) {
	testkit.HoldsCase(t, "s02-layout", "s03-text", "s04-instance-groups")
	for _, name := range folders(t) {
		t.Run(name, func(t *testing.T) {
			gpus := 0
			if strings.HasSuffix(name, "gpu_index") {
				gpus = 2
			}
			found, err := lint.Dir(t.Context(), filepath.Join(cases, filepath.FromSlash(name)), lint.Options{GPUs: &gpus})
			if err != nil {
				t.Fatal(err)
			}
			got := []string{}
			for _, f := range found {
				point := f.Rule == "instance/none" && strings.HasSuffix(name, "/none") || f.Rule == "instance/count"
				if f.Severity != lint.Note || point {
					got = append(got, f.String())
				}
			}
			if d := cmp.Diff(want[name], got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

// The real server loads exactly what the linter finds no error in, and what its
// core refuses is what core rules found.
func TestVerdictsAreThoseOfTheRealServer(t *testing.T) {
	testkit.HoldsCase(t, "s02-layout", "s03-text", "s04-instance-groups")
	repository := t.TempDir()
	names := folders(t)
	for _, n := range names {
		tritontest.CopyTree(t, filepath.Join(cases, filepath.FromSlash(n)), filepath.Join(repository, filepath.Base(n)))
	}
	compareWithServer(t, repository)
}

// unasked are models whose verdict the stand-in backends cannot give.
var unasked = map[string]string{
	"config_in_version_dir": "the native backend completes the inputs and loads it; ours does not complete",
	"version_policy_absent": "the server loads the version that is there; the finding is ours",
}

func compareWithServer(t *testing.T, repository string) {
	t.Helper()
	s := tritontest.Start(t, server.Options{Repositories: []string{repository}, KeepGoing: true, ReadyTimeout: 3 * time.Minute})
	client, err := s.Client(kserve.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	index, err := client.Index(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	state := map[string][]string{}
	for _, m := range index {
		state[m.GetName()] = append(state[m.GetName()], m.GetState())
	}
	said, backend := map[string][]string{}, map[string]bool{}
	for _, e := range s.LoadErrors() {
		backend[e.Model] = backend[e.Model] || e.Backend
		said[e.Model] = append(said[e.Model], e.Text+strings.Join(e.Parser, " "))
	}
	none := 0
	found, err := lint.Dir(t.Context(), repository, lint.Options{GPUs: &none})
	if err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(repository)
	for _, e := range entries {
		name := e.Name()
		loads := len(state[name]) > 0 && !slices.ContainsFunc(state[name], func(s string) bool { return s != "READY" })
		var errs []string
		core := false
		for _, f := range found {
			if f.Model == name && f.Severity == lint.Error && unasked[name] == "" {
				errs = append(errs, f.String())
				core = core || f.Decider == lint.Core
			}
		}
		if name == "config_in_version_dir" {
			continue
		}
		fromBackend := backend[name]
		switch {
		case loads && len(errs) > 0:
			t.Errorf("%s loads in the real server, but we found\n%s", name, strings.Join(errs, "\n"))
		case !loads && len(errs) == 0:
			t.Errorf("%s does not load in the real server, and we found nothing: %v %v", name, state[name], said[name])
		case !loads && core && fromBackend && len(errs) == 1:
			t.Errorf("%s is refused by the backend, we say by the core: %v\n%v", name, errs, said[name])
		case !loads && !core && !fromBackend:
			t.Errorf("%s is refused by the core, we say by a backend: %v\n%v", name, errs, said[name])
		}
	}
	if t.Failed() {
		return
	}
	t.Logf("%d models agree", len(entries))
}
