package lint_test

import (
	"archive/zip"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/engine/enginetest"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/triton/lint"
	"github.com/trtship/trtship/internal/triton/tritontest"
)

const io = `input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ] `

// models are configurations for y = relu(x), x float32[batch,4], by name, with
// the rule that must find the mistake; no rule means that the model loads.
var models = map[string]struct{ config, rule string }{
	"fine":             {`backend: "onnxruntime" max_batch_size: 8 ` + io + `instance_group { kind: KIND_CPU count: 1 }`, ""},
	"platform_alone":   {`platform: "onnxruntime_onnx" max_batch_size: 8 instance_group { kind: KIND_CPU count: 1 } ` + io, ""},
	"bad_platform":     {`platform: "onnx" max_batch_size: 8 ` + io, "config/platform"},
	"negative_batch":   {`backend: "onnxruntime" max_batch_size: -1 ` + io, "config/max-batch"},
	"no_input_name":    {`backend: "onnxruntime" max_batch_size: 8 input { data_type: TYPE_FP32 dims: [ 4 ] }`, "io/name"},
	"no_data_type":     {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" dims: [ 4 ] }`, "io/data-type"},
	"no_dims":          {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 }`, "io/dims"},
	"zero_dim":         {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 0 ] }`, "io/dims"},
	"dim_minus_two":    {`backend: "onnxruntime" max_batch_size: 8 output { name: "y" data_type: TYPE_FP32 dims: [ -2 ] }`, "io/dims"},
	"reshape_size":     {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 5 ] } }`, "io/reshape"},
	"reshape_wild":     {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ 3, -1 ] } }`, "io/reshape"},
	"reshape_zero":     {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 0 ] } }`, "io/reshape"},
	"reshape_nothing":  {`backend: "onnxruntime" max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }`, "io/reshape"},
	"reshape_fine":     {`backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_CPU count: 1 } input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } } output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }`, ""},
	"format":           {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] format: FORMAT_NCHW }`, "io/format"},
	"shape_tensor":     {`backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] is_shape_tensor: true }`, "io/shape-tensor"},
	"preferred_large":  {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { preferred_batch_size: [ 16 ] }`, "batching/preferred"},
	"preferred_zero":   {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { preferred_batch_size: [ 0 ] }`, "batching/preferred"},
	"priority_default": {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { priority_levels: 2 }`, "batching/priority"},
	"priority_key":     {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }`, "batching/priority"},
	"order_levels":     {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }`, "batching/order"},
	"order_delay":      {`backend: "onnxruntime" max_batch_size: 8 ` + io + `dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 } }`, "batching/order"},
	"batching_of_none": {`backend: "onnxruntime" max_batch_size: 0 instance_group { kind: KIND_CPU count: 1 } input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] } dynamic_batching { }`, ""},
	"control_none":     {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START } } }`, "sequence/control"},
	"control_two":      {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ] } } }`, "sequence/control"},
	"control_three":    {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1, 2 ] } } }`, "sequence/control"},
	"control_corrid":   {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input { name: "S" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }`, "sequence/control"},
	"control_twice":    {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input [ { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }, { name: "T" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } ] }`, "sequence/control"},
	"control_name":     {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { control_input { control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }`, "sequence/control"},
	"slots":            {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { direct { minimum_slot_utilization: 2 } }`, "sequence/control"},
	"oldest":           {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { oldest { preferred_batch_size: [ 9 ] } }`, "batching/preferred"},
	"sequence_cache":   {`backend: "onnxruntime" max_batch_size: 8 ` + io + `sequence_batching { } response_cache { enable: true }`, "sequence/cache"},
	"decoupled_cache":  {`backend: "onnxruntime" max_batch_size: 8 ` + io + `model_transaction_policy { decoupled: true } response_cache { enable: true }`, "sequence/cache"},
	"kind_model_gpus":  {`backend: "onnxruntime" max_batch_size: 8 ` + io + `instance_group { kind: KIND_MODEL gpus: [ 0 ] }`, "instance/gpu-list"},
	"profile":          {`backend: "onnxruntime" max_batch_size: 8 ` + io + `instance_group { kind: KIND_CPU profile: "0" }`, "instance/profile"},
	"policy_none":      {`backend: "onnxruntime" max_batch_size: 8 ` + io + `version_policy { specific { versions: [ 5 ] } }`, "policy/none"},
	"policy_latest_0":  {`backend: "onnxruntime" max_batch_size: 8 ` + io + `version_policy { latest { } }`, "policy/none"},
	"warmup_file":      {`backend: "onnxruntime" max_batch_size: 8 ` + io + `model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "none" } } }`, "warmup/sample"},
	"warmup_nothing":   {`backend: "onnxruntime" max_batch_size: 8 ` + io + `model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] } } }`, "warmup/sample"},
	"warmup_dim":       {`backend: "onnxruntime" max_batch_size: 8 ` + io + `model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ -1 ] zero_data: true } } }`, "warmup/sample"},
	"labels":           {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "none.txt" } ]`, "layout/labels-missing"},

	"other_input":   {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/input-name"},
	"other_output":  {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/output-name"},
	"other_type":    {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP16 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/data-type"},
	"other_size":    {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 5 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/shape"},
	"batch_in_dims": {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/shape"},
	"two_inputs":    {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "z" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/input-name"},
	"optional":      {`backend: "onnxruntime" max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] optional: true } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]`, "model/optional"},

	"ensemble_fine":     {ensemble("fine", "x", "y") + ensembleIO, ""},
	"ensemble_group":    {ensemble("fine", "x", "y") + ensembleIO + `instance_group { count: 1 }`, "ensemble/settings"},
	"ensemble_platform": {strings.Replace(ensemble("fine", "x", "y"), `platform: "ensemble"`, `platform: "onnxruntime_onnx"`, 1) + ensembleIO, "ensemble/settings"},
	"ensemble_absent":   {ensemble("nobody", "x", "y") + ensembleIO, "ensemble/model"},
	"ensemble_key":      {ensemble("fine", "z", "y") + ensembleIO, "ensemble/mapping"},
	"ensemble_out":      {ensemble("fine", "x", "z") + ensembleIO, "ensemble/mapping"},
	"ensemble_type":     {ensemble("fine", "x", "y") + strings.Replace(ensembleIO, "TYPE_FP32", "TYPE_INT32", 1), "ensemble/shape"},
	"ensemble_dims":     {ensemble("fine", "x", "y") + strings.Replace(ensembleIO, "dims: [ 4 ]", "dims: [ 5 ]", 1), "ensemble/shape"},
	"ensemble_batch":    {strings.Replace(ensemble("fine", "x", "y"), "max_batch_size: 8", "max_batch_size: 16", 1) + ensembleIO, "ensemble/shape"},
	"ensemble_unused":   {ensemble("fine", "x", "y") + strings.Replace(ensembleIO, `name: "IN"`, `name: "OTHER"`, 1), "ensemble/flow"},
	"ensemble_unmade":   {ensemble("fine", "x", "y") + strings.Replace(ensembleIO, `name: "OUT"`, `name: "OTHER"`, 1), "ensemble/flow"},
	"ensemble_nothing":  {`platform: "ensemble" max_batch_size: 8 ensemble_scheduling { } ` + ensembleIO, "ensemble/step"},
	"ensemble_cycle":    {`platform: "ensemble" max_batch_size: 8 ensemble_scheduling { step [ { model_name: "fine" model_version: -1 input_map { key: "x" value: "B" } output_map { key: "y" value: "A" } }, { model_name: "fine" model_version: -1 input_map { key: "x" value: "A" } output_map { key: "y" value: "B" } }, { model_name: "fine" model_version: -1 input_map { key: "x" value: "IN" } output_map { key: "y" value: "OUT" } } ] } ` + ensembleIO, "ensemble/flow"},
	"ensemble_backend":  {ensemble("fine", "x", "y") + ensembleIO + `backend: "onnxruntime"`, "config/platform-backend"},
}

const ensembleIO = ` input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ] `

func ensemble(model, in, out string) string {
	return fmt.Sprintf(`platform: "ensemble" max_batch_size: 8 ensemble_scheduling { step { model_name: %q model_version: -1 input_map { key: %q value: "IN" } output_map { key: %q value: "OUT" } } }`, model, in, out)
}

func relu(t *testing.T, path string) {
	t.Helper()
	value := func(n string) []*onnxpb.ValueInfoProto {
		return []*onnxpb.ValueInfoProto{tritontest.Value(n, onnxpb.TensorProto_FLOAT, "batch", 4)}
	}
	tritontest.WriteModel(t, path, value("x"), value("y"), tritontest.Node("Relu", []string{"x"}, []string{"y"}, nil))
}

func writeModels(t *testing.T) string {
	t.Helper()
	repository := t.TempDir()
	for name, m := range models {
		tritontest.Write(t, repository, name+"/config.pbtxt", m.config)
		if strings.HasPrefix(name, "ensemble") {
			if err := os.MkdirAll(filepath.Join(repository, name, "1"), 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		relu(t, filepath.Join(repository, name, "1", "model.onnx"))
	}
	return repository
}

func TestEveryCoreRuleFindsItsMistake(t *testing.T) {
	repository := writeModels(t)
	none := 0
	found, err := lint.Dir(t.Context(), repository, lint.Options{GPUs: &none})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range models {
		var rules []string
		for _, f := range found {
			if f.Model == name && f.Severity == lint.Error {
				rules = append(rules, f.Rule)
			}
		}
		switch {
		case m.rule == "" && len(rules) > 0:
			t.Errorf("%s: nothing is wrong, found %v", name, rules)
		case m.rule != "" && !slices.Contains(rules, m.rule):
			t.Errorf("%s: want %s, found %v", name, m.rule, rules)
		}
	}
}

// The same repository in the real server: what loads there has no error here,
// and what does not has one.
func TestCoreRulesAreThoseOfTheRealServer(t *testing.T) { compareWithServer(t, writeModels(t)) }

func TestPlansAreJudgedByTheirDescription(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		o      lint.Options
		want   []string
	}{
		"as it is":               {`platform: "tensorrt_plan" max_batch_size: 4 ` + io, lint.Options{TensorRT: "10.6.0"}, nil},
		"a larger batch":         {`platform: "tensorrt_plan" max_batch_size: 8 ` + io, lint.Options{}, []string{"plan/batch"}},
		"another name":           {`platform: "tensorrt_plan" max_batch_size: 4 ` + strings.Replace(io, `"x"`, `"input"`, 1), lint.Options{}, []string{"plan/tensor"}},
		"another server release": {`platform: "tensorrt_plan" max_batch_size: 4 ` + io, lint.Options{TensorRT: "10.15.1"}, []string{"plan/version"}},
		"on the CPU":             {`platform: "tensorrt_plan" max_batch_size: 4 ` + io + `instance_group { kind: KIND_CPU }`, lint.Options{}, []string{"plan/device"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tritontest.Write(t, dir, "m/config.pbtxt", c.config)
			enginetest.WriteEngine(t, filepath.Join(dir, "m", "1"), func(d *engine.Description) { d.TensorRT = "10.6.0.26" })
			found, err := lint.Dir(t.Context(), filepath.Join(dir, "m"), c.o)
			if err != nil {
				t.Fatal(err)
			}
			var rules []string
			for _, f := range found {
				if f.Severity == lint.Error {
					rules = append(rules, f.Rule)
				}
			}
			if !slices.Equal(rules, c.want) {
				t.Errorf("%v", found)
			}
		})
	}
	t.Run("another plan than the one that is described", func(t *testing.T) {
		dir := t.TempDir()
		tritontest.Write(t, dir, "m/config.pbtxt", `platform: "tensorrt_plan" max_batch_size: 4 `+io)
		enginetest.WriteEngine(t, filepath.Join(dir, "m", "1"), nil)
		tritontest.Write(t, dir, "m/1/model.plan", "nalp")
		found, err := lint.Dir(t.Context(), filepath.Join(dir, "m"), lint.Options{})
		if err != nil || len(found) == 0 || !slices.ContainsFunc(found, func(f lint.Finding) bool {
			return f.Rule == "plan/description" && f.File == "m/1/engine.json" && strings.Contains(f.Text, "plan_digest")
		}) {
			t.Errorf("%v %v", found, err)
		}
	})
	dir := t.TempDir()
	tritontest.Write(t, dir, "m/config.pbtxt", `platform: "tensorrt_plan"`)
	tritontest.Write(t, dir, "m/1/model.plan", "plan")
	found, err := lint.Dir(t.Context(), dir, lint.Options{})
	if err != nil || !slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Rule == "plan/unknown" }) {
		t.Errorf("a plan that nothing describes: %v %v", found, err)
	}
}

func TestAStateDictCannotBeServed(t *testing.T) {
	for name, files := range map[string][]string{"weights": {"archive/data.pkl", "archive/data/0"}, "script": {"archive/code/__torch__.py", "archive/data.pkl"}} {
		dir := t.TempDir()
		tritontest.Write(t, dir, "m/config.pbtxt", `platform: "pytorch_libtorch" `+io)
		path := filepath.Join(dir, "m", "1", "model.pt")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		for _, n := range files {
			if _, err := z.Create(n); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		found, err := lint.Dir(t.Context(), dir, lint.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(found, func(f lint.Finding) bool { return f.Rule == "model/state-dict" }); got != (name == "weights") {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestWhatIsNoRepository(t *testing.T) {
	if found, err := lint.Dir(t.Context(), t.TempDir(), lint.Options{}); err != nil || len(found) != 1 || found[0].Rule != "layout/empty" {
		t.Errorf("%v %v", found, err)
	}
	if _, err := lint.Dir(t.Context(), filepath.Join(t.TempDir(), "none"), lint.Options{}); err == nil {
		t.Error("a folder that is not there was linted")
	}
	file := filepath.Join(t.TempDir(), "any.pbtxt")
	tritontest.Write(t, filepath.Dir(file), "any.pbtxt", `batching_option [ ]`)
	if found, err := lint.Dir(t.Context(), file, lint.Options{}); err != nil || len(found) != 1 || found[0].Place() != "any.pbtxt:1:1" {
		t.Errorf("a configuration alone: %v %v", found, err)
	}
}

func TestEveryRuleNamesItsDeciderAndSource(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range lint.Rules {
		if seen[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		seen[r.ID] = true
		if r.Title == "" || r.Decider == "" || r.Severity == "" || r.Decider != lint.Ours && r.Source == "" {
			t.Errorf("%+v", r)
		}
	}
}
