package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// core runs the rules of the server's core.
func (l *linter) core(m *model) {
	l.platform(m)
	if m.config.GetMaxBatchSize() < 0 {
		l.add("config/max-batch", m, "max_batch_size", fmt.Sprintf("max_batch_size is %d", m.config.GetMaxBatchSize()), "0 turns batching off")
	}
	l.tensors(m)
	l.dynamicBatching(m)
	l.sequences(m)
	if m.config.GetEnsembleScheduling() != nil || m.config.GetPlatform() == "ensemble" {
		l.ensemble(m)
	} else {
		l.instances(m)
		l.warmup(m)
	}
	if m.config.GetModelTransactionPolicy().GetDecoupled() && m.config.GetResponseCache().GetEnable() {
		l.add("sequence/cache", m, "response_cache", "the response cache does not go with decoupled transactions", "turn one of them off")
	}
}

// platforms are those that belong to one backend.
var platforms = map[string]string{
	"tensorrt_plan": "tensorrt", "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch",
	"tensorflow_graphdef": "tensorflow", "tensorflow_savedmodel": "tensorflow", "torch_aoti": "torch_aoti",
}

func (l *linter) platform(m *model) {
	if m.doc.Fatal() || m.missing {
		return // what is missing may be in what could not be read
	}
	platform, backend := m.config.GetPlatform(), m.backend
	if m.alone && backend == "" {
		backend = platforms[platform]
	}
	switch {
	case platform == "ensemble" || m.config.GetEnsembleScheduling() != nil:
		if backend != "" && platform == "ensemble" {
			l.add("config/platform-backend", m, "backend", fmt.Sprintf("an ensemble has no backend, %q is given", backend), "remove it")
		}
	case platform == "" && backend == "" && !m.alone:
		l.add("config/backend", m, "", "neither backend nor platform is given, and no file tells which it is", `write backend: "onnxruntime" or "tensorrt"`)
	case platform != "" && backend == "" && platforms[platform] == "":
		l.add("config/platform", m, "platform", fmt.Sprintf("the server knows no platform %q", platform), "known are tensorrt_plan, onnxruntime_onnx, pytorch_libtorch and ensemble; other backends are named by backend")
	case known(backend) && m.platformOr(platform) != "" && platforms[m.platformOr(platform)] != backend:
		path := "platform"
		if platform == "" {
			path = "backend"
		}
		l.add("config/platform-backend", m, path, fmt.Sprintf("platform %q and backend %q contradict each other", platform, backend), "keep one of the two")
	}
}

func known(backend string) bool {
	return backend == "tensorrt" || backend == "onnxruntime" || backend == "pytorch" || backend == "tensorflow"
}

func (m *model) platformOr(platform string) string {
	if platform != "" {
		return platform
	}
	return m.format
}

// io is what inputs and outputs have in common.
type io interface {
	GetName() string
	GetDataType() tritonpb.DataType
	GetDims() []int64
	GetReshape() *tritonpb.ModelTensorReshape
	GetIsShapeTensor() bool
}

func (l *linter) tensors(m *model) {
	names := map[string]bool{}
	for i, in := range m.config.GetInput() {
		path := fmt.Sprintf("input[%d]", i)
		l.tensor(m, in, "input", path, names)
		if in.GetFormat() != tritonpb.ModelInput_FORMAT_NONE && len(in.GetDims()) != 3 {
			l.add("io/format", m, path+".format", fmt.Sprintf("%s needs 3 dims, input %s has %d", in.GetFormat(), in.GetName(), len(in.GetDims())), "")
		}
	}
	names = map[string]bool{}
	for i, out := range m.config.GetOutput() {
		l.tensor(m, out, "output", fmt.Sprintf("output[%d]", i), names)
	}
}

func (l *linter) tensor(m *model, t io, kind, path string, names map[string]bool) {
	partial := m.doc.Fatal() // what seems missing may be what could not be read
	name := t.GetName()
	if name == "" && !partial {
		l.add("io/name", m, path, "an "+kind+" has no name", "")
	}
	if names[name] && name != "" {
		l.add("io/twice", m, path+".name", fmt.Sprintf("%s %s is declared twice", kind, name), "")
	}
	names[name] = true
	if t.GetDataType() == tritonpb.DataType_TYPE_INVALID && !partial {
		l.add("io/data-type", m, path, fmt.Sprintf("%s %s has no data_type", kind, name), "")
	}
	if len(t.GetDims()) == 0 && !partial {
		l.add("io/dims", m, path, fmt.Sprintf("%s %s has no dims", kind, name), "a scalar is dims: [ 1 ] with reshape { }")
	}
	for i, d := range t.GetDims() {
		if d < 1 && d != -1 {
			l.add("io/dims", m, fmt.Sprintf("%s.dims[%d]", path, i), fmt.Sprintf("dimension %d of %s %s is %d", i, kind, name, d), "1 and up, or -1 for any size")
		}
	}
	l.reshape(m, t, kind, path)
	if t.GetIsShapeTensor() && m.format != "tensorrt_plan" && !m.alone {
		l.add("io/shape-tensor", m, path+".is_shape_tensor", fmt.Sprintf("%s %s is marked as a shape tensor, which only TensorRT plans have", kind, name), "")
	}
}

func (l *linter) reshape(m *model, t io, kind, path string) {
	r := t.GetReshape()
	if r == nil {
		return
	}
	if len(r.GetShape()) == 0 && m.config.GetMaxBatchSize() == 0 {
		l.add("io/reshape", m, path+".reshape", fmt.Sprintf("%s %s is reshaped to nothing, which needs batching", kind, t.GetName()), "Triton has no scalars without a batch")
		return
	}
	for _, d := range r.GetShape() {
		if d < 1 && d != -1 {
			l.add("io/reshape", m, path+".reshape", fmt.Sprintf("%s %s is reshaped to a dimension %d", kind, t.GetName(), d), "1 and up, or -1 for any size")
			return
		}
	}
	if !slices.Equal(pieces(t.GetDims()), pieces(r.GetShape())) {
		l.add("io/reshape", m, path+".reshape", fmt.Sprintf("%s %s: dims %v and reshape %v have different sizes", kind, t.GetName(), t.GetDims(), r.GetShape()), "both must hold the same elements between dimensions of any size")
	}
}

// pieces returns the number of elements between dimensions of any size.
func pieces(dims []int64) []int64 {
	out := []int64{1}
	for _, d := range dims {
		if d == -1 {
			out = append(out, 1)
		} else {
			out[len(out)-1] *= d
		}
	}
	return out
}

func (l *linter) dynamicBatching(m *model) {
	d := m.config.GetDynamicBatching()
	if d == nil {
		return
	}
	limit := m.config.GetMaxBatchSize()
	for i, n := range d.GetPreferredBatchSize() {
		if n <= 0 || n > limit {
			l.add("batching/preferred", m, fmt.Sprintf("dynamic_batching.preferred_batch_size[%d]", i), fmt.Sprintf("the preferred batch size %d is not between 1 and max_batch_size %d", n, limit), "")
		}
	}
	if limit == 0 && len(d.GetPreferredBatchSize()) == 0 {
		l.add("batching/off", m, "dynamic_batching", "max_batch_size is 0: dynamic batching has nothing to merge", "set max_batch_size, or remove dynamic_batching")
	}
	l.priorities(m, d)
	if !d.GetPreserveOrdering() {
		return
	}
	if d.GetPriorityLevels() > 1 {
		l.add("batching/order", m, "dynamic_batching.preserve_ordering", fmt.Sprintf("preserve_ordering excludes %d priority levels", d.GetPriorityLevels()), "use one level")
	}
	policies := []*tritonpb.ModelQueuePolicy{d.GetDefaultQueuePolicy()}
	for _, p := range d.GetPriorityQueuePolicy() {
		policies = append(policies, p)
	}
	for _, p := range policies {
		if p.GetDefaultTimeoutMicroseconds() != 0 && p.GetTimeoutAction() == tritonpb.ModelQueuePolicy_DELAY {
			l.add("batching/order", m, "dynamic_batching.preserve_ordering", "preserve_ordering excludes the timeout action DELAY", "use REJECT")
			return
		}
	}
}

func (l *linter) priorities(m *model, d *tritonpb.ModelDynamicBatching) {
	levels := d.GetPriorityLevels()
	if levels == 0 {
		return
	}
	if def := d.GetDefaultPriorityLevel(); def == 0 || def > levels {
		l.add("batching/priority", m, "dynamic_batching.default_priority_level", fmt.Sprintf("default_priority_level is %d, levels are 1 to %d", def, levels), "")
	}
	for level := range d.GetPriorityQueuePolicy() {
		if level == 0 || level > levels {
			l.add("batching/priority", m, fmt.Sprintf("dynamic_batching.priority_queue_policy[%d]", level), fmt.Sprintf("there is a queue policy for level %d, levels are 1 to %d", level, levels), "")
		}
	}
}

func (l *linter) sequences(m *model) {
	s := m.config.GetSequenceBatching()
	if s == nil {
		return
	}
	if m.config.GetResponseCache().GetEnable() {
		l.add("sequence/cache", m, "response_cache", "the response cache does not go with sequence batching", "turn it off")
	}
	kinds, tensors := map[tritonpb.ModelSequenceBatching_Control_Kind]bool{}, map[string]bool{}
	for i, c := range s.GetControlInput() {
		path := fmt.Sprintf("sequence_batching.control_input[%d]", i)
		if c.GetName() == "" {
			l.add("sequence/control", m, path, "a control input has no name", "")
		}
		if tensors[c.GetName()] {
			l.add("sequence/control", m, path, fmt.Sprintf("the control input %s is given for several kinds", c.GetName()), "")
		}
		tensors[c.GetName()] = true
		for j, k := range c.GetControl() {
			at := fmt.Sprintf("%s.control[%d]", path, j)
			if kinds[k.GetKind()] {
				l.add("sequence/control", m, at, fmt.Sprintf("%s is given to several tensors", k.GetKind()), "")
			}
			kinds[k.GetKind()] = true
			l.control(m, k, at)
		}
	}
	l.strategy(m, s)
}

func (l *linter) control(m *model, k *tritonpb.ModelSequenceBatching_Control, at string) {
	values := []int{len(k.GetInt32FalseTrue()), len(k.GetFp32FalseTrue()), len(k.GetBoolFalseTrue())}
	given := 0
	for _, n := range values {
		if n > 0 {
			given++
		}
	}
	if k.GetKind() == tritonpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID {
		switch k.GetDataType() {
		case tritonpb.DataType_TYPE_UINT64, tritonpb.DataType_TYPE_INT64, tritonpb.DataType_TYPE_UINT32, tritonpb.DataType_TYPE_INT32, tritonpb.DataType_TYPE_STRING:
		default:
			l.add("sequence/control", m, at, fmt.Sprintf("%s has the data type %s", k.GetKind(), k.GetDataType()), "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING")
		}
		if given > 0 {
			l.add("sequence/control", m, at, fmt.Sprintf("%s has no false and true values", k.GetKind()), "remove them")
		}
		return
	}
	if given != 1 {
		l.add("sequence/control", m, at, fmt.Sprintf("%s needs one of int32_false_true, fp32_false_true and bool_false_true, %d are given", k.GetKind(), given), "")
	} else if slices.Max(values) != 2 {
		l.add("sequence/control", m, at, fmt.Sprintf("%s needs two values, false and true, %d are given", k.GetKind(), slices.Max(values)), "")
	}
}

func (l *linter) strategy(m *model, s *tritonpb.ModelSequenceBatching) {
	for i, n := range s.GetOldest().GetPreferredBatchSize() {
		if n <= 0 || n > m.config.GetMaxBatchSize() {
			l.add("batching/preferred", m, fmt.Sprintf("sequence_batching.oldest.preferred_batch_size[%d]", i), fmt.Sprintf("the preferred batch size %d is not between 1 and max_batch_size %d", n, m.config.GetMaxBatchSize()), "")
		}
	}
	if u := s.GetDirect().GetMinimumSlotUtilization(); u < 0 || u > 1 {
		l.add("sequence/control", m, "sequence_batching.direct.minimum_slot_utilization", fmt.Sprintf("minimum_slot_utilization is %g", u), "between 0 and 1")
	}
}

func (l *linter) instances(m *model) {
	groups := m.config.GetInstanceGroup()
	if len(groups) == 0 && !m.doc.Fatal() && !m.missing {
		l.add("instance/none", m, "", "there is no instance_group: the server chooses, and takes the CPU when it sees no GPU", "write instance_group [ { kind: KIND_GPU count: 1 } ], or KIND_CPU")
	}
	for i, g := range groups {
		path := fmt.Sprintf("instance_group[%d]", i)
		if g.GetKind() == tritonpb.ModelInstanceGroup_KIND_GPU {
			l.gpus(m, g, path)
		} else if (g.GetKind() == tritonpb.ModelInstanceGroup_KIND_CPU || g.GetKind() == tritonpb.ModelInstanceGroup_KIND_MODEL) && len(g.GetGpus()) > 0 {
			l.add("instance/gpu-list", m, path+".gpus", fmt.Sprintf("%s lists GPUs %v", g.GetKind(), g.GetGpus()), "remove the list, or write kind: KIND_GPU")
		}
		if g.GetCount() < 1 && m.doc.Has(path+".count") {
			l.add("instance/count", m, path+".count", fmt.Sprintf("count %d is the same as none: the server takes its default, %s", g.GetCount(), m.defaultCount(g)), "write the number")
		}
		if len(g.GetProfile()) > 0 && m.format != "tensorrt_plan" && !m.alone {
			l.add("instance/profile", m, path+".profile", "profiles exist for TensorRT plans only", "remove it")
		}
		for _, p := range g.GetProfile() {
			if n, err := strconv.Atoi(p); err != nil || n < 0 {
				l.add("instance/profile", m, path+".profile", fmt.Sprintf("the profile %q is no number", p), `"0" is the first`)
			}
		}
	}
}

func (m *model) defaultCount(g *tritonpb.ModelInstanceGroup) string {
	if m.backend == "onnxruntime" && g.GetKind() != tritonpb.ModelInstanceGroup_KIND_GPU {
		return "2 instances for ONNX on a CPU"
	}
	return "1 instance"
}

// gpus judges GPU instances, where it is known what the server sees.
func (l *linter) gpus(m *model, g *tritonpb.ModelInstanceGroup, path string) {
	if l.o.GPUs == nil {
		return
	}
	n := *l.o.GPUs
	if n == 0 {
		l.add("instance/no-gpu", m, path+".kind", "KIND_GPU, and the server sees no GPU: the model does not load", "give the server a GPU, or write kind: KIND_CPU")
		return
	}
	for i, id := range g.GetGpus() {
		if id < 0 || int(id) >= n {
			l.add("instance/no-gpu", m, fmt.Sprintf("%s.gpus[%d]", path, i), fmt.Sprintf("GPU %d is asked for, the server sees %d (0 to %d)", id, n, n-1), "CUDA_VISIBLE_DEVICES renumbers them from 0")
		}
	}
}

// warmup judges warm-up samples.
func (l *linter) warmup(m *model) {
	for i, w := range m.config.GetModelWarmup() {
		path := fmt.Sprintf("model_warmup[%d]", i)
		if w.GetBatchSize() > 1 && int64(w.GetBatchSize()) > int64(m.config.GetMaxBatchSize()) {
			l.add("warmup/input", m, path+".batch_size", fmt.Sprintf("the warm-up sample has batch size %d, max_batch_size is %d", w.GetBatchSize(), m.config.GetMaxBatchSize()), "")
		}
		for name, in := range w.GetInputs() {
			at := fmt.Sprintf("%s.inputs[%s]", path, name)
			if !slices.ContainsFunc(m.config.GetInput(), func(t *tritonpb.ModelInput) bool { return t.GetName() == name }) {
				l.add("warmup/input", m, at, fmt.Sprintf("the warm-up sample feeds %s, which is no input", name), "")
			}
			if in.GetInputDataType() == nil {
				l.add("warmup/sample", m, at, fmt.Sprintf("the warm-up input %s has no data", name), "zero_data: true, random_data: true or input_data_file")
			}
			if f := in.GetInputDataFile(); f != "" && !m.alone {
				if _, err := os.Stat(filepath.Join(m.dir, "warmup", filepath.FromSlash(f))); err != nil {
					l.add("warmup/sample", m, at, fmt.Sprintf("the warm-up file warmup/%s is not there", f), "")
				}
			}
			for _, d := range in.GetDims() {
				if d < 1 {
					l.add("warmup/sample", m, at, fmt.Sprintf("the warm-up input %s has a dimension %d", name, d), "sizes are given here, not -1")
				}
			}
		}
	}
}
