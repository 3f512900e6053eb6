package served

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/trtship/trtship/internal/artifact"
	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/testkit"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/server"
	"github.com/trtship/trtship/internal/triton/tritonpb"
	"github.com/trtship/trtship/internal/triton/tritontest"
	"github.com/trtship/trtship/report"
	"github.com/trtship/trtship/stages/packaging"
)

const settings = `
model:
  name: small
  kind: onnx
  path: model.onnx
  inputs: [{name: x, dtype: float32, shape: [batch, 4]}]
target: onnxruntime
tensorrt:
  profiles: [{inputs: {x: {min: [1, 4], opt: [2, 4], max: [4, 4]}}}]
triton:
  dynamic_batching: {max_queue_delay_us: 2000}
`

// trial packages a model and serves it.
type trial struct {
	cfg    *config.Config
	inputs tritontest.Inputs
	out    *testkit.Outputs
}

func prepare(t *testing.T, yaml string, model, reference string) trial {
	t.Helper()
	cfg, err := config.Parse([]byte(yaml), "trtship.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr := trial{cfg: cfg, inputs: tritontest.Inputs{
		tritontest.Artifact(artifact.OptimizedONNX, "", filepath.Dir(model)), tritontest.Artifact(artifact.Reference, "", reference),
	}}
	out := testkit.NewOutputs(t)
	checks, err := packaging.New(cfg).Run(t.Context(), tr.inputs, out)
	if err != nil || report.Of(checks) != report.Pass {
		t.Fatalf("package: %v %+v", err, checks)
	}
	tr.inputs = append(tr.inputs, tritontest.Artifact(artifact.Repository, "", out.Published[0].Dir))
	tr.out = testkit.NewOutputs(t)
	return tr
}

func (tr trial) run(t *testing.T) ([]report.Check, error) {
	t.Helper()
	in := tritontest.Installation(t)
	s := New(tr.cfg, Tools{Find: func(context.Context) (server.Installation, error) { return in, nil }})
	return s.Run(t.Context(), tr.inputs, tr.out)
}

// verdicts returns the worst verdict by id and protocol.
func verdicts(checks []report.Check) map[string]report.Verdict {
	out := map[string]report.Verdict{}
	for _, c := range checks {
		key := strings.TrimSuffix(c.ID+" "+c.Subject.Protocol, " ")
		if v, ok := out[key]; ok {
			out[key] = report.Worst(v, c.Verdict)
		} else {
			out[key] = c.Verdict
		}
	}
	return out
}

func values(names ...any) []*onnxpb.ValueInfoProto {
	return []*onnxpb.ValueInfoProto{tritontest.Value(names[0].(string), onnxpb.TensorProto_FLOAT, names[1:]...)}
}

// y = relu(x), and m = the mean of each row, which has no dimension besides the batch.
func goodModel(t *testing.T) (model, reference string) {
	t.Helper()
	model = filepath.Join(t.TempDir(), "model.onnx")
	tritontest.WriteModel(t, model, values("x", "batch", 4), append(values("y", "batch", 4), values("m", "batch")...),
		tritontest.Node("Relu", []string{"x"}, []string{"y"}, nil),
		tritontest.Node("ReduceMean", []string{"x"}, []string{"m"}, map[string][]int64{"axes": {1}, "keepdims": {0}}))
	reference = tritontest.WriteReference(t, 4, func(x []float32, batch int) []tensor.Named {
		y, m := make([]float32, len(x)), make([]float32, batch)
		for i, v := range x {
			y[i] = max(v, 0)
			m[i/4] += v / 4
		}
		return []tensor.Named{tritontest.Tensor("y", []int64{int64(batch), 4}, y...), tritontest.Tensor("m", []int64{int64(batch)}, m...)}
	})
	return model, reference
}

func TestARealServerAnswersLikeTheModel(t *testing.T) {
	model, reference := goodModel(t)
	tr := prepare(t, settings, model, reference)
	checks, err := tr.run(t)
	if err != nil {
		t.Fatal(err)
	}
	got := verdicts(checks)
	for _, id := range []string{
		"served/loads", "served/device", "served/batches-merged", "served/ends",
		"served/within-tolerance http", "served/within-tolerance grpc", "served/within-tolerance grpc-concurrent", "served/shapes grpc", "served/deterministic http",
	} {
		if got[id] != report.Pass {
			t.Errorf("%s: %q", id, got[id])
		}
	}
	for _, c := range checks {
		if !c.Verdict.Good() {
			t.Errorf("%+v", c)
		}
	}
	known := map[string]bool{}
	for _, d := range (&Stage{}).Spec().Checks {
		known[d.ID] = true
	}
	for _, c := range checks {
		if !known[c.ID] {
			t.Errorf("%s is not in the Spec", c.ID)
		}
	}
	var v report.Validation
	tr.out.Document(artifact.ServedReport, &v)
	if v.Stage != "served" || v.Stored.Candidate == "" || !strings.Contains(v.Candidate, "tritonserver 2.51.0") {
		t.Errorf("%+v", v.Stored)
	}
}

// y = x minus the mean over the batch: alone a request gets the reference's
// answer, merged with others it does not.
func TestAModelThatDependsOnItsNeighboursPassesAloneAndIsCaughtUnderConcurrency(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model.onnx")
	tritontest.WriteModel(t, model, values("x", "batch", 4), values("y", "batch", 4),
		tritontest.Node("ReduceMean", []string{"x"}, []string{"mean"}, map[string][]int64{"axes": {0}, "keepdims": {1}}),
		tritontest.Node("Sub", []string{"x", "mean"}, []string{"y"}, nil))
	reference := tritontest.WriteReference(t, 4, func(x []float32, batch int) []tensor.Named {
		mean := make([]float32, 4)
		for i, v := range x {
			mean[i%4] += v / float32(batch)
		}
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = v - mean[i%4]
		}
		return []tensor.Named{tritontest.Tensor("y", []int64{int64(batch), 4}, y...)}
	})
	tr := prepare(t, settings, model, reference)
	checks, err := tr.run(t)
	if err != nil {
		t.Fatal(err)
	}
	got := verdicts(checks)
	if got["served/within-tolerance http"] != report.Pass || got["served/within-tolerance grpc"] != report.Pass {
		t.Errorf("serially it must pass: %v", got)
	}
	if got["served/within-tolerance grpc-concurrent"] != report.Fail || got["served/batches-merged"] != report.Pass {
		t.Errorf("under concurrency it must be caught: %v", got)
	}
}

func TestWithoutDynamicBatchingNothingIsMergedAndThatIsSaid(t *testing.T) {
	model, reference := goodModel(t)
	tr := prepare(t, strings.Replace(settings, "dynamic_batching: {max_queue_delay_us: 2000}", "max_batch_size: 2\n  protocols: [http]", 1), model, reference)
	checks, err := tr.run(t)
	if err != nil {
		t.Fatal(err)
	}
	got := verdicts(checks)
	if got["served/batches-merged"] != report.Skip || got["served/within-tolerance grpc"] != "" {
		t.Errorf("%v", got)
	}
	for _, c := range checks {
		if c.Subject.Point == "max" && c.ID == "served/within-tolerance" && (c.Verdict != report.Skip || !strings.Contains(c.Detail, "above max_batch_size 2")) {
			t.Errorf("a batch above the limit is not asked: %+v", c)
		}
	}
}

func TestARepositoryThatDoesNotLoadFailsWithTheServersWords(t *testing.T) {
	model, reference := goodModel(t)
	tr := prepare(t, settings, model, reference)
	dir := tr.inputs[2].Dir
	path := filepath.Join(dir, "small", "config.pbtxt")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), "TYPE_FP32", "TYPE_INT32", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	checks, err := tr.run(t)
	if err != nil {
		t.Fatal(err)
	}
	if len(checks) != 1 || checks[0].ID != "served/loads" || checks[0].Verdict != report.Fail || !strings.Contains(checks[0].Got, "TYPE_INT32") {
		t.Errorf("%+v", checks)
	}
}

func TestAServerThatIsKilledMidRunIsOneError(t *testing.T) {
	model, reference := goodModel(t)
	tr := prepare(t, settings, model, reference)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if pid := child(t, "tritonserver"); pid != 0 && strings.Contains(tr.out.LogText(), "Started HTTPService") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := tr.run(t)
	e, ok := errors.AsType[*failure.Error](err)
	if !ok || e.Code != failure.Triton || !strings.Contains(err.Error(), "SIGKILL") {
		t.Errorf("got %v", err)
	}
	// Its backends were killed with it, which takes the kernel a moment.
	left := child(t, "triton")
	for until := time.Now().Add(5 * time.Second); left != 0 && time.Now().Before(until); left = child(t, "triton") {
		time.Sleep(10 * time.Millisecond)
	}
	if left != 0 {
		t.Errorf("process %d is left", left)
	}
}

// child finds a child process of the test by its name.
func child(t *testing.T, name string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		if strings.Contains(string(stat), "("+name) && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			return pid
		}
	}
	return 0
}

// s04: a model that was meant for a GPU and sits on the CPU fails.
func TestAModelOnTheWrongDeviceFails(t *testing.T) {
	config := func(text string) *tritonpb.ModelConfig { return pbtxt.Parse(text).Config }
	for name, c := range map[string]struct {
		written, loaded string
		want            report.Verdict
	}{
		"a GPU was meant": {`instance_group { kind: KIND_GPU count: 1 }`, `instance_group { kind: KIND_CPU count: 1 }`, report.Fail},
		"as meant":        {`instance_group { kind: KIND_CPU count: 2 }`, `instance_group { kind: KIND_CPU count: 2 }`, report.Pass},
		"both kinds":      {`instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]`, `instance_group [ { kind: KIND_GPU gpus: [0, 1] count: 1 }, { kind: KIND_CPU count: 1 } ]`, report.Pass},
	} {
		t.Run(name, func(t *testing.T) {
			if got := deviceCheck(config(c.written), config(c.loaded)); got.Verdict != c.want {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestWhatTheStageSaysOfItself(t *testing.T) {
	cfg, err := config.Parse([]byte(settings), "trtship.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(cfg, Tools{Find: func(context.Context) (server.Installation, error) { return tritontest.Installation(t), nil }})
	tools, err := s.Tools(t.Context())
	if err != nil || !strings.Contains(tools["tritonserver"], "2.51.0") {
		t.Errorf("%v %v", tools, err)
	}
	if s.Spec().Cacheable || len(s.Sources()) != 0 || s.Settings() == nil {
		t.Error("what a server answers is measured each time")
	}
	s.tools.Find = func(context.Context) (server.Installation, error) {
		return server.Installation{}, failure.New(failure.Missing, "none")
	}
	if _, err := s.Tools(t.Context()); failure.CodeOf(err) != failure.Missing {
		t.Errorf("got %v", err)
	}
	for want, change := range map[string]func(*config.Config){
		"onnx": func(*config.Config) {}, "int8": func(c *config.Config) { c.Triton.Precision = "int8" },
		"fp16": func(c *config.Config) { c.Target, c.TensorRT.Precisions = "tensorrt", []string{"fp32", "fp16"} },
		"fp32": func(c *config.Config) { c.Target, c.TensorRT.Precisions = "tensorrt", nil },
	} {
		c := *cfg
		change(&c)
		if got := (&session{stage: &Stage{config: &c}}).precision(); got != want {
			t.Errorf("precision %s, want %s", got, want)
		}
	}
	if cacheBytes(&tritonpb.ModelConfig{ResponseCache: &tritonpb.ModelResponseCache{Enable: true}}) == 0 || cacheBytes(nil) != 0 {
		t.Error("the response cache")
	}
}
