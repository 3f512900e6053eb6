package config

import (
	"slices"

	"gopkg.in/yaml.v3"
)

// WithInputs returns the configuration with inputs that were read from an ONNX
// file in place of none, and checks profiles, points and batch sizes against
// them. It is for kind onnx, where model.inputs may be left out.
func (c *Config) WithInputs(inputs []Input) (*Config, error) {
	out := *c
	out.Model.Inputs = slices.Clone(inputs)
	out.Benchmark.BatchSizes = slices.Clone(c.Benchmark.BatchSizes)
	d := &decoder{file: c.Path, sources: map[*yaml.Node]string{}, places: map[string]*yaml.Node{}}
	for path, line := range c.Lines {
		d.places[path] = &yaml.Node{Line: line, Column: 1}
	}
	for path, source := range c.Overrides {
		n := &yaml.Node{}
		d.places[path], d.sources[n] = n, source
	}
	d.check(&out)
	if len(d.problems) > 0 {
		return nil, d.problems.failure(c.Path)
	}
	return &out, nil
}
