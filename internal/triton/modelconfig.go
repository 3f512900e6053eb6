package triton

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strconv"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// Settings is what the configuration of a model is made from, besides the
// model itself.
type Settings struct {
	Name     string
	MaxBatch int64 // the largest batch that the profiles ask for; 0 if there is none
	Triton   config.Triton
	// Where names a key of the configuration file for errors; may be nil.
	Where func(key string) string
}

func (s Settings) where(key string) string {
	return s.whole("triton." + key)
}

func (s Settings) whole(key string) string {
	if s.Where == nil {
		return ""
	}
	return s.Where(key)
}

// Configure makes the configuration of a model: names, types and shapes from
// its signature, the rest from the settings. notes say what a reader should
// know, such as why batching is off.
func Configure(sig Signature, s Settings) (c *tritonpb.ModelConfig, notes []string, err error) {
	c = &tritonpb.ModelConfig{Name: s.Name, Platform: sig.Format.Platform(), Backend: sig.Format.Backend(), DefaultModelFilename: sig.Format.File()}
	limit, why, err := maxBatch(sig, s)
	if err != nil {
		return nil, nil, err
	}
	if why != "" {
		notes = append(notes, "max_batch_size is 0: "+why)
	}
	if low, _, ok := sig.BatchRange(); ok && low > 1 && limit > 0 {
		notes = append(notes, fmt.Sprintf("the plan takes no batch below %d: smaller requests are refused", low))
	}
	c.MaxBatchSize = int32(limit)
	if err := setTensors(c, sig, limit > 0); err != nil {
		return nil, nil, err
	}
	if err := setGroups(c, sig.Format, s); err != nil {
		return nil, nil, err
	}
	if err := setBatching(c, s); err != nil {
		return nil, nil, err
	}
	if c.VersionPolicy, err = versionPolicy(s); err != nil {
		return nil, nil, err
	}
	setRest(c, sig.Format, s)
	return c, notes, setLabels(c, s)
}

// maxBatch returns max_batch_size: the model's limit, or what the settings
// lower it to. Raising it is a mistake that names both numbers.
func maxBatch(sig Signature, s Settings) (limit int64, why string, err error) {
	why, ok := sig.Batched()
	if ok {
		limit = s.MaxBatch
		if _, high, has := sig.BatchRange(); has {
			limit = high
		}
		if limit == 0 {
			why = "no profile says how large a batch may be"
		}
	}
	if limit < 0 || limit > math.MaxInt32 {
		return 0, "", failure.New(failure.Usage, "the profiles take a batch of %d, and max_batch_size holds 0 to %d", limit, math.MaxInt32).
			At(s.whole("tensorrt.profiles")).WithHint("lower max of the profile's first dimension")
	}
	want := s.Triton.MaxBatchSize
	if want == nil {
		return limit, why, nil
	}
	if *want < 0 || int64(*want) > limit {
		e := failure.New(failure.Usage, "triton.max_batch_size is %d, the model's limit is %d", *want, limit).At(s.where("max_batch_size"))
		if why != "" {
			e = e.With("batching", "%s", why)
		}
		return 0, "", e.WithHint("lower it to %d or less, or raise the profile's max", limit)
	}
	if *want == 0 && limit > 0 {
		why = "triton.max_batch_size turns batching off"
	}
	return int64(*want), why, nil
}

func setTensors(c *tritonpb.ModelConfig, sig Signature, batched bool) error {
	for _, t := range sig.Inputs {
		dtype, dims, reshape, err := declare(t, batched)
		if err != nil {
			return err
		}
		c.Input = append(c.Input, &tritonpb.ModelInput{Name: t.Name, DataType: dtype, Dims: dims, Reshape: reshape, IsShapeTensor: t.Shape})
	}
	for _, t := range sig.Outputs {
		dtype, dims, reshape, err := declare(t, batched)
		if err != nil {
			return err
		}
		c.Output = append(c.Output, &tritonpb.ModelOutput{Name: t.Name, DataType: dtype, Dims: dims, Reshape: reshape, IsShapeTensor: t.Shape})
	}
	return nil
}

// declare returns the declaration of one tensor. Triton refuses empty dims, so
// what has none besides the batch is declared as [ 1 ] and reshaped.
func declare(t Tensor, batched bool) (tritonpb.DataType, []int64, *tritonpb.ModelTensorReshape, error) {
	dtype, ok := kserve.ConfigType(t.DType)
	if !ok || t.Type != "tensor" {
		return 0, nil, nil, failure.New(failure.Triton, "%s cannot be served: Triton has no type for it", t)
	}
	if !t.HasRank {
		return 0, nil, nil, failure.New(failure.Export, "%s has no shape", t.Name).WithHint("export it with a declared shape; Triton needs at least the rank")
	}
	dims := append([]int64{}, t.Dims...)
	if batched && !t.Shape {
		dims = dims[1:]
	}
	if len(dims) == 0 {
		return dtype, []int64{1}, &tritonpb.ModelTensorReshape{}, nil
	}
	return dtype, dims, nil, nil
}

// setGroups always writes kind and count: without them Triton takes what it
// finds, and a model meant for a GPU is served from the CPU.
func setGroups(c *tritonpb.ModelConfig, f Format, s Settings) error {
	groups := s.Triton.InstanceGroups
	if len(groups) == 0 {
		groups = []config.InstanceGroup{{Kind: "auto", Count: 1}}
	}
	for i, g := range groups {
		key := fmt.Sprintf("instance_groups.%d", i)
		kind := tritonpb.ModelInstanceGroup_KIND_CPU
		if g.Kind == "gpu" || (g.Kind == "auto" || g.Kind == "") && f == Plan {
			kind = tritonpb.ModelInstanceGroup_KIND_GPU
		}
		if kind == tritonpb.ModelInstanceGroup_KIND_CPU && f == Plan {
			return failure.New(failure.Usage, "%s.kind is cpu, and a TensorRT plan runs on a GPU only", "triton."+key).At(s.where(key))
		}
		if kind == tritonpb.ModelInstanceGroup_KIND_CPU && len(g.GPUs) > 0 {
			return failure.New(failure.Usage, "%s names GPUs %v for instances on the CPU", "triton."+key, g.GPUs).At(s.where(key)).
				WithHint("set kind: gpu, or leave gpus out")
		}
		if g.Count > math.MaxInt32 || slices.ContainsFunc(g.GPUs, func(gpu int) bool { return gpu < 0 || gpu > math.MaxInt32 }) {
			return failure.New(failure.Usage, "%s has count %d and GPUs %v: a number is below 0 or above %d", "triton."+key, g.Count, g.GPUs, math.MaxInt32).At(s.where(key))
		}
		out := &tritonpb.ModelInstanceGroup{Kind: kind, Count: int32(max(g.Count, 1))}
		for _, gpu := range g.GPUs {
			out.Gpus = append(out.Gpus, int32(gpu))
		}
		c.InstanceGroup = append(c.InstanceGroup, out)
	}
	return nil
}

func setBatching(c *tritonpb.ModelConfig, s Settings) error {
	d := s.Triton.DynamicBatching
	if d == nil {
		return nil
	}
	if d.MaxDelayUS < 0 || d.PriorityLevels < 0 || d.DefaultLevel < 0 || d.Queue != nil && (d.Queue.TimeoutUS < 0 || d.Queue.MaxSize < 0 || d.Queue.MaxSize > math.MaxUint32) {
		return failure.New(failure.Usage, "triton.dynamic_batching has a number below 0, or a queue of more than %d", uint32(math.MaxUint32)).At(s.where("dynamic_batching"))
	}
	if c.MaxBatchSize == 0 {
		return failure.New(failure.Usage, "triton.dynamic_batching is set, but max_batch_size is 0: there are no batches to make").At(s.where("dynamic_batching"))
	}
	out := &tritonpb.ModelDynamicBatching{
		MaxQueueDelayMicroseconds: uint64(d.MaxDelayUS), PreserveOrdering: d.PreserveOrder,
		PriorityLevels: uint64(d.PriorityLevels), DefaultPriorityLevel: uint64(d.DefaultLevel),
	}
	for _, n := range d.PreferredSizes {
		if n < 1 || n > int(c.MaxBatchSize) {
			return failure.New(failure.Usage, "triton.dynamic_batching.preferred_batch_size has %d, max_batch_size is %d", n, c.MaxBatchSize).
				At(s.where("dynamic_batching.preferred_batch_size"))
		}
		out.PreferredBatchSize = append(out.PreferredBatchSize, int32(n))
	}
	if d.PriorityLevels > 0 && (d.DefaultLevel < 1 || d.DefaultLevel > d.PriorityLevels) {
		return failure.New(failure.Usage, "triton.dynamic_batching.default_priority_level is %d, levels are 1 to %d", d.DefaultLevel, d.PriorityLevels).
			At(s.where("dynamic_batching.default_priority_level"))
	}
	if q := d.Queue; q != nil {
		out.DefaultQueuePolicy = &tritonpb.ModelQueuePolicy{
			DefaultTimeoutMicroseconds: uint64(q.TimeoutUS), AllowTimeoutOverride: q.AllowOverride, MaxQueueSize: uint32(q.MaxSize),
		}
		if q.TimeoutAction == "delay" {
			out.DefaultQueuePolicy.TimeoutAction = tritonpb.ModelQueuePolicy_DELAY
		}
	}
	c.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: out}
	return nil
}

// versionPolicy reads triton.version_policy, which has the form of the
// configuration's own message. Nothing given is the latest version.
func versionPolicy(s Settings) (*tritonpb.ModelVersionPolicy, error) {
	bad := func(format string, args ...any) error {
		return failure.New(failure.Usage, "triton.version_policy: "+format, args...).At(s.where("version_policy")).
			WithHint("write latest: {num_versions: 1}, all: {}, or specific: {versions: [1, 2]}")
	}
	p := s.Triton.VersionPolicy
	if len(p) == 0 {
		return &tritonpb.ModelVersionPolicy{PolicyChoice: &tritonpb.ModelVersionPolicy_Latest_{Latest: &tritonpb.ModelVersionPolicy_Latest{NumVersions: 1}}}, nil
	}
	if len(p) > 1 {
		return nil, bad("%d policies, one may be given", len(p))
	}
	for name, v := range p {
		fields, _ := v.(map[string]any)
		switch name {
		case "all":
			return &tritonpb.ModelVersionPolicy{PolicyChoice: &tritonpb.ModelVersionPolicy_All_{All: &tritonpb.ModelVersionPolicy_All{}}}, nil
		case "latest":
			n, ok := integer(fields["num_versions"])
			if fields["num_versions"] == nil {
				n, ok = 1, true
			}
			if !ok || n < 1 || n > math.MaxUint32 {
				return nil, bad("latest.num_versions is %v", fields["num_versions"])
			}
			return &tritonpb.ModelVersionPolicy{PolicyChoice: &tritonpb.ModelVersionPolicy_Latest_{Latest: &tritonpb.ModelVersionPolicy_Latest{NumVersions: uint32(n)}}}, nil
		case "specific":
			list, _ := fields["versions"].([]any)
			out := &tritonpb.ModelVersionPolicy_Specific{}
			for _, e := range list {
				n, ok := integer(e)
				if !ok || n < 1 {
					return nil, bad("specific.versions holds %v", e)
				}
				out.Versions = append(out.Versions, n)
			}
			if len(out.Versions) == 0 {
				return nil, bad("specific names no version")
			}
			return &tritonpb.ModelVersionPolicy{PolicyChoice: &tritonpb.ModelVersionPolicy_Specific_{Specific: out}}, nil
		default:
			return nil, bad("there is no policy %q", name)
		}
	}
	return nil, nil
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53 // beyond that it is no exact number
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

func setRest(c *tritonpb.ModelConfig, f Format, s Settings) {
	if s.Triton.ResponseCache {
		c.ResponseCache = &tritonpb.ModelResponseCache{Enable: true}
	}
	if s.Triton.CUDAGraphs && f == Plan {
		c.Optimization = &tritonpb.ModelOptimizationPolicy{Cuda: &tritonpb.ModelOptimizationPolicy_Cuda{Graphs: true}}
	}
	for k, v := range s.Triton.Parameters {
		if c.Parameters == nil {
			c.Parameters = map[string]*tritonpb.ModelParameter{}
		}
		c.Parameters[k] = &tritonpb.ModelParameter{StringValue: v}
	}
}

// setLabels names the label files, which are copied beside config.pbtxt.
func setLabels(c *tritonpb.ModelConfig, s Settings) error {
	names := make([]string, 0, len(s.Triton.Labels))
	for output := range s.Triton.Labels {
		names = append(names, output)
	}
	sort.Strings(names)
	for _, output := range names {
		found := false
		for _, o := range c.Output {
			if o.Name == output {
				o.LabelFilename, found = labelFile(s.Triton.Labels, output), true
			}
		}
		if !found {
			return failure.New(failure.Usage, "triton.labels names the output %q, which the model does not have", output).At(s.where("labels"))
		}
	}
	return nil
}

// labelFile returns the name of an output's label file in the repository: its
// own, with the output's position in front if two files have the same name.
func labelFile(labels map[string]string, output string) string {
	base := filepath.Base(labels[output])
	n, at := 0, 0
	names := make([]string, 0, len(labels))
	for o := range labels {
		names = append(names, o)
	}
	sort.Strings(names)
	for i, o := range names {
		if filepath.Base(labels[o]) == base && labels[o] != labels[output] {
			n++
		}
		if o == output {
			at = i
		}
	}
	if n > 0 {
		return fmt.Sprintf("%d-%s", at, base)
	}
	return base
}
