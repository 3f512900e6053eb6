package engine

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/testkit"
)

// trt11 asks the Python half what it would do with TensorRT 11, of which only
// strongly typed networks are left. The module is a stand-in with the names
// that the real one still has, so that a name which is gone raises
// AttributeError as it would there.
const trt11 = `
import json, sys, types
sys.path.insert(0, sys.argv[1])
trt = types.ModuleType("tensorrt")
trt.__version__ = "11.2.1"
class NetworkDefinitionCreationFlag: STRONGLY_TYPED = 1
class BuilderFlag: TF32, REFIT = 7, 3
trt.NetworkDefinitionCreationFlag, trt.BuilderFlag = NetworkDefinitionCreationFlag, BuilderFlag
sys.modules["tensorrt"] = trt
import trt_build, trt_versions
class Config:
    def set_flag(self, flag): raise AssertionError(f"flag {flag}")
out = {"strong": trt_build.network_flags(trt_build.load_tensorrt(), "strong"), "weak": {}}
for request in json.load(sys.stdin):
    try:
        trt_build.set_precision_flags(trt, Config(), request)
        out["weak"][request["precision"]] = ""
    except trt_build.BuildError as err:
        out["weak"][request["precision"]] = str(err)
out["calibrator"] = trt_versions.has(trt, "calibrator")
json.dump(out, sys.stdout)
`

func TestTensorRT11TakesPrecisionFromTheGraph(t *testing.T) {
	testkit.HoldsCase(t, "t05-trt11")
	root := testkit.Root(t)
	c, err := config.Load(filepath.Join(root, "testdata", "cases", "t05-trt11", "config.yaml"), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.TensorRT.Typing != "strong" {
		t.Errorf("typing %q: by default precisions must be in the graph", c.TensorRT.Typing)
	}
	var requests []BuildRequest
	for _, p := range c.TensorRT.Precisions {
		requests = append(requests, RequestOf(c.TensorRT, p, "model.onnx", "model.plan"))
	}
	in, err := json.Marshal(requests)
	if err != nil || len(requests) != 3 {
		t.Fatalf("%d requests, %v", len(requests), err)
	}
	cmd := exec.Command(testkit.Python(t), "-I", "-c", trt11, filepath.Join(root, "internal", "worker", "python"))
	cmd.Stdin = strings.NewReader(string(in))
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	var got struct {
		Strong     int
		Weak       map[string]string
		Calibrator bool
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	// Nothing but strong typing is asked of the network: EXPLICIT_BATCH is gone.
	if got.Strong != 1<<1 || got.Calibrator {
		t.Errorf("%s", b)
	}
	for p, want := range map[string]string{
		"fp32": "",
		"fp16": "TensorRT 11.2.1 has no fp16 flag: fp16 must be in the graph (tensorrt.typing: strong)",
		"int8": "TensorRT 11.2.1 has no int8 flag: int8 must be in the graph (tensorrt.typing: strong)",
	} {
		if got.Weak[p] != want {
			t.Errorf("%s by flags: %q, want %q", p, got.Weak[p], want)
		}
	}
}
