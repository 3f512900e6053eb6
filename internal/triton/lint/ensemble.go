package lint

import (
	"fmt"
	"maps"
	"slices"

	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// ensemble judges an ensemble: its settings, its flow, and its models.
func (l *linter) ensemble(m *model) {
	c := m.config
	if c.GetPlatform() != "ensemble" {
		l.add("ensemble/settings", m, "ensemble_scheduling", fmt.Sprintf("ensemble_scheduling needs platform \"ensemble\", it is %q", c.GetPlatform()), `write platform: "ensemble"`)
	}
	if c.GetEnsembleScheduling() == nil {
		l.add("ensemble/settings", m, "platform", "platform is \"ensemble\", and there is no ensemble_scheduling", "")
		return
	}
	for _, s := range []struct {
		field string
		given bool
	}{{"instance_group", len(c.GetInstanceGroup()) > 0}, {"optimization", c.GetOptimization() != nil}, {"model_warmup", len(c.GetModelWarmup()) > 0}} {
		if s.given {
			l.add("ensemble/settings", m, s.field, fmt.Sprintf("an ensemble has no %s", s.field), "remove it: the models have it")
		}
	}
	steps := c.GetEnsembleScheduling().GetStep()
	if len(steps) == 0 {
		l.add("ensemble/step", m, "ensemble_scheduling", "the ensemble has no step", "")
		return
	}
	if l.steps(m, steps) {
		l.flow(m, steps)
	}
	if !m.alone {
		l.mappings(m, steps)
	}
}

func stepPath(i int) string { return fmt.Sprintf("ensemble_scheduling.step[%d]", i) }

// steps looks whether every step is complete and writes each tensor once.
func (l *linter) steps(m *model, steps []*tritonpb.ModelEnsembling_Step) bool {
	ok := true
	bad := func(i int, format string, args ...any) {
		ok = false
		l.add("ensemble/step", m, stepPath(i), fmt.Sprintf(format, args...), "")
	}
	written := map[string]int{}
	for i, s := range steps {
		if s.GetModelName() == "" {
			bad(i, "step %d names no model", i)
		}
		if len(s.GetInputMap()) == 0 {
			bad(i, "step %d has no input_map", i)
		}
		if len(s.GetOutputMap()) == 0 {
			bad(i, "step %d has no output_map", i)
		}
		for _, key := range slices.Sorted(maps.Keys(s.GetOutputMap())) {
			t := s.GetOutputMap()[key]
			if first, twice := written[t]; twice {
				bad(i, "the tensor %s is written by step %d and by step %d", t, first, i)
			}
			written[t] = i
		}
	}
	return ok
}

// flow looks whether every output can be computed from the inputs and nothing
// is left over.
func (l *linter) flow(m *model, steps []*tritonpb.ModelEnsembling_Step) {
	read, ready := map[string]bool{}, map[string]bool{}
	for _, s := range steps {
		for _, t := range s.GetInputMap() {
			read[t] = true
		}
	}
	for i, in := range m.config.GetInput() {
		if !read[in.GetName()] {
			l.add("ensemble/flow", m, fmt.Sprintf("input[%d]", i), fmt.Sprintf("no step reads the ensemble's input %s", in.GetName()), "")
		}
		ready[in.GetName()] = true
	}
	done := make([]bool, len(steps))
	for again := true; again; {
		again = false
		for i, s := range steps {
			if done[i] || !allReady(s, ready) {
				continue
			}
			done[i], again = true, true
			for _, t := range s.GetOutputMap() {
				ready[t] = true
			}
		}
	}
	for i, s := range steps {
		for _, key := range slices.Sorted(maps.Keys(s.GetInputMap())) {
			if t := s.GetInputMap()[key]; !ready[t] {
				l.add("ensemble/flow", m, fmt.Sprintf("%s.input_map[%s]", stepPath(i), key), fmt.Sprintf("step %d reads %s, which nothing before it writes", i, t), "")
			}
		}
	}
	l.leftover(m, steps, read, ready)
}

func allReady(s *tritonpb.ModelEnsembling_Step, ready map[string]bool) bool {
	for _, t := range s.GetInputMap() {
		if !ready[t] {
			return false
		}
	}
	return true
}

func (l *linter) leftover(m *model, steps []*tritonpb.ModelEnsembling_Step, read, ready map[string]bool) {
	outputs := map[string]bool{}
	for i, out := range m.config.GetOutput() {
		outputs[out.GetName()] = true
		if !ready[out.GetName()] {
			l.add("ensemble/flow", m, fmt.Sprintf("output[%d]", i), fmt.Sprintf("no step writes the ensemble's output %s", out.GetName()), "")
		}
	}
	for i, s := range steps {
		for _, key := range slices.Sorted(maps.Keys(s.GetOutputMap())) {
			if t := s.GetOutputMap()[key]; !read[t] && !outputs[t] {
				l.add("ensemble/flow", m, fmt.Sprintf("%s.output_map[%s]", stepPath(i), key), fmt.Sprintf("nothing reads %s, and it is no output of the ensemble", t), "leave it out of output_map")
			}
		}
	}
}

// known is a tensor of an ensemble with what was first said about it.
type ensembleTensor struct {
	from  string
	dtype tritonpb.DataType
	dims  []int64
	full  []int64
}

// mappings compares the steps with their models.
func (l *linter) mappings(m *model, steps []*tritonpb.ModelEnsembling_Step) {
	seen := map[string]ensembleTensor{}
	batched := m.config.GetMaxBatchSize() > 0
	for _, in := range m.config.GetInput() {
		seen[in.GetName()] = ensembleOf("the ensemble", in, batched, true)
	}
	for _, out := range m.config.GetOutput() {
		seen[out.GetName()] = ensembleOf("the ensemble", out, batched, true)
	}
	for i, s := range steps {
		other := l.models[s.GetModelName()]
		if other == nil {
			if s.GetModelName() != "" {
				l.add("ensemble/model", m, stepPath(i)+".model_name", fmt.Sprintf("step %d names the model %s, which is not in the repository", i, s.GetModelName()), "")
			}
			continue
		}
		if v := s.GetModelVersion(); v > 0 && !slices.ContainsFunc(other.folders, func(f folder) bool { return f.ok && f.version == v }) {
			l.add("ensemble/model", m, stepPath(i)+".model_version", fmt.Sprintf("step %d asks for version %d of %s, which is not there", i, v, s.GetModelName()), "-1 is the newest")
		}
		if n := other.config.GetMaxBatchSize(); n != 0 && n < m.config.GetMaxBatchSize() {
			l.add("ensemble/shape", m, "max_batch_size", fmt.Sprintf("max_batch_size is %d, the model %s takes %d", m.config.GetMaxBatchSize(), s.GetModelName(), n), "")
		}
		if len(other.config.GetInput()) > 0 { // else the backend completes it
			l.mapStep(m, s, other, i, seen)
		}
	}
}

func ensembleOf(from string, t io, batched, reshaped bool) ensembleTensor {
	e := ensembleTensor{from: from, dtype: t.GetDataType(), dims: t.GetDims()}
	if reshaped && t.GetReshape() != nil {
		e.dims = t.GetReshape().GetShape()
	}
	if batched {
		e.full = []int64{-1}
	}
	e.full = append(e.full, e.dims...)
	return e
}

func (l *linter) mapStep(m *model, s *tritonpb.ModelEnsembling_Step, other *model, i int, seen map[string]ensembleTensor) {
	batched := other.config.GetMaxBatchSize() > 0
	inputs, outputs := map[string]io{}, map[string]io{}
	for _, t := range other.config.GetInput() {
		inputs[t.GetName()] = t
		if s.GetInputMap()[t.GetName()] == "" && !t.GetOptional() {
			l.add("ensemble/mapping", m, stepPath(i)+".input_map", fmt.Sprintf("step %d does not map the input %s of %s", i, t.GetName(), other.name), "")
		}
	}
	for _, t := range other.config.GetOutput() {
		outputs[t.GetName()] = t
	}
	for _, side := range []struct {
		kind, path string
		names      map[string]string
		have       map[string]io
	}{{"input", "input_map", s.GetInputMap(), inputs}, {"output", "output_map", s.GetOutputMap(), outputs}} {
		for _, key := range slices.Sorted(maps.Keys(side.names)) {
			at := fmt.Sprintf("%s.%s[%s]", stepPath(i), side.path, key)
			t, ok := side.have[key]
			if !ok {
				l.add("ensemble/mapping", m, at, fmt.Sprintf("the model %s has no %s %s", other.name, side.kind, key), nearHint(key, slices.Sorted(maps.Keys(side.have))))
				continue
			}
			now := ensembleOf(other.name, t, batched, false)
			before, ok := seen[side.names[key]]
			if !ok {
				seen[side.names[key]] = now
			} else if before.dtype != now.dtype {
				l.add("ensemble/shape", m, at, fmt.Sprintf("the tensor %s is %s for %s and %s for %s", side.names[key], before.dtype, before.from, now.dtype, now.from), "")
			} else if !compatible(before.dims, now.dims) && !compatible(before.full, now.full) {
				l.add("ensemble/shape", m, at, fmt.Sprintf("the tensor %s is %v for %s and %v for %s", side.names[key], before.full, before.from, now.full, now.from), "")
			}
		}
	}
}

// compatible compares dimensions; -1 goes with everything.
func compatible(a, b []int64) bool {
	return slices.EqualFunc(a, b, func(x, y int64) bool { return x == y || x == -1 || y == -1 })
}
