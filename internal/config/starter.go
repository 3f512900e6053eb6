package config

import (
	"fmt"
	"strings"

	"github.com/trtship/trtship/internal/failure"
)

// StarterKinds are the kinds that Starter knows.
var StarterKinds = []string{"module", "checkpoint", "torchscript", "onnx"}

// Starter returns the starter file for a kind of model. schema is put into the
// header that editors read; empty leaves the header out.
func Starter(name, kind, schema string) ([]byte, error) {
	if !modelNameForm.MatchString(name) {
		return nil, failure.New(failure.Usage, "%q is no name of a model", name).WithHint("use letters, digits, dot, dash and underscore")
	}
	source, ok := starterSources[kind]
	if !ok {
		return nil, failure.New(failure.Usage, "unknown kind %q", kind).WithHint("one of %s", strings.Join(StarterKinds, ", "))
	}
	var b strings.Builder
	if schema != "" {
		fmt.Fprintf(&b, "# yaml-language-server: $schema=%s\n", schema)
	}
	fmt.Fprintf(&b, starterText, name, kind, source)
	return []byte(b.String()), nil
}

var starterSources = map[string]string{
	"module": `  factory: my_model:build          # package.module:callable that returns an nn.Module
`,
	"checkpoint": `  factory: my_model:build          # package.module:callable that returns an nn.Module
  path: weights.pt                 # a state dict, loaded weights-only
`,
	"torchscript": `  path: model.ts.pt
  trust_source: true               # an archive can carry code that runs while it is loaded
`,
	"onnx": `  path: model.onnx
`,
}

const starterText = `# Every key: trtship config schema, or docs/configuration.md.
model:
  name: %s
  kind: %s
%s  inputs:
    - name: x
      dtype: float32
      shape: [batch, 3, 32, 32]    # a name is a dynamic dimension, a number is fixed
  output_names: [y]

target: onnxruntime                # what is shipped: onnxruntime or tensorrt (needs an NVIDIA GPU)

tensorrt:
  precisions: [fp32]               # fp32, fp16, bf16, int8
  profiles:                        # every dynamic input needs its range
    - inputs:
        x: {min: [1, 3, 32, 32], opt: [8, 3, 32, 32], max: [32, 3, 32, 32]}

validation:
  num_samples: 4
`
