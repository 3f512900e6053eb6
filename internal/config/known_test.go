package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// whole is a valid configuration with something in every section that checks
// set against another.
const whole = `model:
  name: bert
  kind: checkpoint
  factory: m:build
  path: w.pt
  inputs:
    - {name: ids, dtype: int64, shape: [batch, seq], range: [0, 99]}
    - {name: mask, dtype: bool, shape: [batch, seq], range: [0, 1]}
    - {name: scale, dtype: float32, shape: [], argument: scale}
  output_names: [hidden, pooled]
target: tensorrt
validation:
  points: [{ids: [3, 9], mask: [3, 9]}]
  outputs: {hidden: {atol: 0.5}}
  task: {data: d.npz, output: pooled, batch: 4}
tensorrt:
  precisions: [fp32, int8]
  typing: weak
  precision_constraints: prefer
  profiles:
    - inputs:
        ids: {min: [1, 8], opt: [4, 64], max: [16, 128]}
        mask: {min: [1, 8], opt: [4, 64], max: [16, 128]}
calibration:
  path: data
  num_samples: 32
  min_samples: 16
  input: ids
  batch_size: 4
  preprocess: {crop: [8, 8], mean: [1, 2], std: [1, 2], range: [0, 1]}
benchmark:
  batch_sizes: [1, 4]
  concurrency: [1]
triton:
  model_name: bert
  precision: int8
  max_batch_size: 8
  dynamic_batching: {preferred_batch_size: [4], priority_levels: 2, default_priority_level: 1}
  version_policy: {latest: {num_versions: 2}}
  protocols: [http]
  bind_address: 127.0.0.1
  labels: {pooled: l.txt}
gate:
  budgets:
    - {metric: nodes, max: 3, min: 1}
`

// eachNode calls f with every key and list element of a document.
func eachNode(n *yaml.Node, path string, f func(path string, parent *yaml.Node, at int)) {
	switch n.Kind {
	case yaml.DocumentNode:
		eachNode(n.Content[0], path, f)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			p := join(path, n.Content[i].Value)
			f(p, n, i)
			eachNode(n.Content[i+1], p, f)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			p := join(path, fmt.Sprint(i))
			f(p, n, i)
			eachNode(c, p, f)
		}
	}
}

// mutate returns the document with one node changed.
func mutate(t *testing.T, path, how string) string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(whole), &doc); err != nil {
		t.Fatal(err)
	}
	done := false
	eachNode(&doc, "", func(p string, parent *yaml.Node, at int) {
		if p != path || done {
			return
		}
		done = true
		odd := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: "qqq"}, {Kind: yaml.SequenceNode}}}
		switch {
		case how == "another kind" && parent.Kind == yaml.MappingNode:
			parent.Content[at+1] = odd
		case how == "another kind":
			parent.Content[at] = odd
		case how == "another key" && parent.Kind == yaml.MappingNode:
			parent.Content[at] = &yaml.Node{Kind: yaml.ScalarNode, Value: "qqqqqqqqqqqq"}
		case how == "a slip of the pen" && parent.Kind == yaml.MappingNode:
			parent.Content[at] = &yaml.Node{Kind: yaml.ScalarNode, Value: parent.Content[at].Value + "z"}
		}
	})
	b, err := yaml.Marshal(&doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// free are sections whose keys the user chooses or that are judged as a whole;
// another key there is a mistake of its own kind.
var free = []string{"validation.points.", "validation.outputs.", "tensorrt.profiles.0.inputs.", "triton.version_policy.", "triton.labels."}

func TestOneMistakeIsToldOnce(t *testing.T) {
	if _, err := Parse([]byte(whole), "c.yaml", Options{}); err != nil {
		t.Fatalf("the whole configuration is wrong: %v", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(whole), &doc); err != nil {
		t.Fatal(err)
	}
	var paths []string
	eachNode(&doc, "", func(p string, _ *yaml.Node, _ int) { paths = append(paths, p) })
	tried := 0
	for _, path := range paths {
		for _, how := range []string{"another kind", "another key", "a slip of the pen"} {
			isFree := slices.ContainsFunc(free, func(f string) bool { return strings.HasPrefix(path, f) })
			if isFree && how != "another kind" {
				continue
			}
			text := mutate(t, path, how)
			if sameYAML(t, text, whole) {
				continue // an element of a list has no key
			}
			tried++
			_, err := Parse([]byte(text), "c.yaml", Options{})
			got := problemsOf(err)
			if strings.HasPrefix(path, "triton.version_policy") || strings.HasPrefix(path, "model.factory_args") {
				continue // of any kind until it is judged
			}
			if len(got) == 0 {
				t.Errorf("%s, %s: nothing is wrong", path, how)
			}
			want := path
			if how != "another kind" {
				want = parent(path)
			}
			for _, g := range got {
				if !strings.Contains(g, ": "+want) || how != "another kind" && len(got) > 1 {
					t.Errorf("%s, %s: a mistake that follows from it is told too:\n%s", path, how, strings.Join(got, "\n"))
					break
				}
			}
		}
	}
	if tried < 150 {
		t.Errorf("only %d mistakes were tried", tried)
	}
}

func sameYAML(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if yaml.Unmarshal([]byte(a), &x) != nil || yaml.Unmarshal([]byte(b), &y) != nil {
		t.Fatal("not YAML")
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// TestAllMistakesAreToldAtOnce sets contradictions beside mistakes in the
// structure that have nothing to do with them.
func TestAllMistakesAreToldAtOnce(t *testing.T) {
	meaning := map[string]string{
		"tensorrt.profiles.0.inputs.ids={min: [5, 8], opt: [4, 64], max: [16, 128]}": "min 5 is above opt 4",
		"model.output_names=[a, a]":               `"a" is listed twice`,
		"model.inputs.1.name=ids":                 `"ids" is declared twice`,
		"model.inputs.0.range=[5, 1]":             "low 5 is above high 1",
		"benchmark.batch_sizes=[99]":              "batch 99 is outside",
		"triton.max_batch_size=64":                "64 is above the model's largest batch 16",
		"calibration.min_samples=400":             "num_samples 32 is below min_samples 400",
		"gate.budgets=[{metric: nodes}]":          "has no limit",
		"validation.points=[{idz: [1, 8]}]":       "no input has this name",
		"triton.bind_address=here":                "is no IP address",
		"model.factory=m.build":                   "is not package.module:callable",
		"triton.precision=fp16":                   "is not among tensorrt.precisions",
		"validation.outputs={hiden: {atol: 0.5}}": "did you mean hidden?",
	}
	structure := []string{
		"export.opset=text", "export.opsett=3", "log.unheard=1", "benchmark.iters=[1]", "tensorrt.workspace_mb={}", "model.inputs.2.qqqqqqqqq=1", "model.inputs.2.argument=[1]",
		"validation.num_samples=x", "triton.http_port=x", "gate.confidence=x", "quantize.keep_fp32=3", "calibration.method=nothing",
	}
	for set, want := range meaning {
		for _, odd := range structure {
			t.Run(set+" and "+odd, func(t *testing.T) {
				_, err := Parse([]byte(whole), "c.yaml", Options{Set: []string{set, odd}})
				key, _, _ := strings.Cut(odd, "=")
				key, _, _ = strings.Cut(key, "zz")
				got := strings.Join(problemsOf(err), "\n")
				if !strings.Contains(got, want) || !strings.Contains(got, "--set "+key) && !strings.Contains(got, key) {
					t.Errorf("got %s\nwant %q and %s", got, want, odd)
				}
			})
		}
	}
}
