package tritontest

import (
	"fmt"
	"strings"
	"testing"
)

// EchoTypes are the element types of the echo model, by their names in the
// protocol.
var EchoTypes = []string{"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"}

// WriteEcho writes a model of Triton's own python backend that gives back what
// it gets: an optional input IN_<type> and an output OUT_<type> of two
// dimensions for every type. seconds is how long each execution takes.
func WriteEcho(t testing.TB, repository, name string, seconds float64) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "name: %q\nbackend: \"python\"\nmax_batch_size: 0\n", name)
	for _, io := range []string{"input", "output"} {
		for _, typ := range EchoTypes {
			config := "TYPE_" + strings.Replace(typ, "BYTES", "STRING", 1)
			optional := ""
			if io == "input" {
				optional = " optional: true"
			}
			fmt.Fprintf(&b, "%s { name: \"%s_%s\" data_type: %s dims: [ -1, -1 ]%s }\n", io, strings.ToUpper(io[:len(io)-3]), typ, config, optional)
		}
	}
	b.WriteString("instance_group [ { kind: KIND_CPU count: 1 } ]\n")
	Write(t, repository, name+"/config.pbtxt", b.String())
	Write(t, repository, name+"/1/model.py", fmt.Sprintf(echo, seconds))
}

const echo = `import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(%g)
        return [self.one(r) for r in requests]

    def one(self, request):
        out = []
        for tensor in request.inputs():
            name = "OUT" + tensor.name()[2:]
            if name == "OUT_BF16":
                if min(tensor.shape()) == 0:
                    return pb_utils.InferenceResponse(error=pb_utils.TritonError("no elements of type BF16"))
                out.append(pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()))
            else:
                out.append(pb_utils.Tensor(name, tensor.as_numpy()))
        if not out:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("nothing to echo"))
        return pb_utils.InferenceResponse(output_tensors=out)
`
