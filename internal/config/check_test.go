package config

import (
	"strings"
	"testing"
)

const two = `model:
  name: bert
  kind: checkpoint
  factory: m:build
  path: w.pt
  inputs:
    - {name: ids, dtype: int64, shape: [batch, seq], range: [0, 99]}
    - {name: mask, dtype: bool, shape: [batch, seq]}
    - {name: scale, shape: []}
  output_names: [hidden, pooled]
tensorrt:
  precisions: [fp32, fp16]
  profiles:
    - inputs:
        ids: {min: [1, 8], opt: [4, 64], max: [16, 128]}
        mask: {min: [1, 8], opt: [4, 64], max: [16, 128]}
`

func TestWhatContradictsItselfIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		set  []string
		want string
	}{
		"a dynamic input without any profile":      {[]string{"tensorrt.profiles=[]"}, "ids is dynamic in batch, seq and tensorrt.profiles is empty"},
		"a dynamic input missing in a profile":     {[]string{"tensorrt.profiles.0.inputs={ids: {min: [1, 8], opt: [1, 8], max: [1, 8]}}"}, "mask is dynamic in batch, seq and has no min, opt and max here"},
		"an unknown input in a profile":            {[]string{"tensorrt.profiles.0.inputs.maks={min: [1], opt: [1], max: [1]}"}, "no input has this name; did you mean mask?"},
		"min above opt":                            {[]string{"tensorrt.profiles.0.inputs.ids.min=[5, 8]", "tensorrt.profiles.0.inputs.mask.min=[5, 8]"}, "dimension 0: min 5 is above opt 4"},
		"opt above max":                            {[]string{"tensorrt.profiles.0.inputs.ids.max=[3, 128]", "tensorrt.profiles.0.inputs.mask.max=[3, 128]"}, "dimension 0: opt 4 is above max 3"},
		"another rank":                             {[]string{"tensorrt.profiles.0.inputs.ids.min=[1]"}, "has 1 dimensions, but ids has 2: [batch, seq]"},
		"a missing end":                            {[]string{"tensorrt.profiles.0.inputs.ids={min: [1, 8], opt: [4, 64]}"}, "ids.max: is missing"},
		"a size of zero":                           {[]string{"tensorrt.profiles.0.inputs.ids.min=[0, 8]"}, "0 is not between 1 and 2147483647"},
		"one symbol with two sizes":                {[]string{"tensorrt.profiles.0.inputs.mask.max=[16, 256]"}, "dimension 1 (seq) is 256, but seq is 128 for ids"},
		"a fixed input of another size":            {[]string{"model.inputs.2.shape=[1]", "tensorrt.profiles.0.inputs.scale={min: [1], opt: [1], max: [2]}"}, "dimension 0 is 2, but scale is fixed to 1 there"},
		"a benchmark batch outside":                {[]string{"benchmark.batch_sizes=[1, 32]"}, "batch 32 is outside of the profile, which allows 1 to 16"},
		"a task batch outside":                     {[]string{"validation.task={data: d.npz, batch: 17}"}, "batch 17 is outside of the profile, which allows 1 to 16"},
		"a calibration batch outside":              {[]string{"calibration.batch_size=17"}, "batch 17 is outside"},
		"a max_batch_size above the model's":       {[]string{"triton.max_batch_size=64"}, "64 is above the model's largest batch 16"},
		"a preferred size above the batch":         {[]string{"triton.max_batch_size=8", "triton.dynamic_batching.preferred_batch_size=[4, 12]"}, "12 is above the largest batch 8"},
		"dynamic batching without a batch":         {[]string{"triton.max_batch_size=0", "triton.dynamic_batching={}"}, "needs a batch dimension"},
		"a priority level that does not exist":     {[]string{"triton.dynamic_batching={priority_levels: 2, default_priority_level: 3}"}, "3 is above priority_levels 2"},
		"priorities without a default":             {[]string{"triton.dynamic_batching={priority_levels: 2}"}, "needs default_priority_level"},
		"int8 without calibration":                 {[]string{"tensorrt.precisions=[int8]"}, "int8 needs calibration.path"},
		"fewer samples than the least":             {[]string{"calibration.num_samples=4"}, "num_samples 4 is below min_samples 16"},
		"more than there are samples":              {[]string{"calibration.min_samples=400"}, "num_samples 128 is below min_samples 400"},
		"an unknown calibration input":             {[]string{"calibration.input=idz"}, "no input has the name idz; did you mean ids?"},
		"a checkpoint without a factory":           {[]string{"model.factory="}, "is missing; kind checkpoint is made by a factory"},
		"a checkpoint without weights":             {[]string{"model.path="}, "is missing; kind checkpoint is read from a file"},
		"a module with weights":                    {[]string{"model.kind=module"}, "has no meaning for kind module"},
		"TorchScript without trust":                {[]string{"model.kind=torchscript", "model.factory="}, "must be true for kind torchscript"},
		"a factory for ONNX":                       {[]string{"model.kind=onnx"}, "has no meaning for kind onnx"},
		"arguments of a factory for ONNX":          {[]string{"model.kind=onnx", "model.factory=", "model.factory_args.a=1"}, "factory_args: has no meaning for kind onnx"},
		"a factory without a callable":             {[]string{"model.factory=m.build"}, "is not package.module:callable"},
		"no inputs":                                {[]string{"model.inputs=[]"}, "kind checkpoint needs its inputs"},
		"an input twice":                           {[]string{"model.inputs.1.name=ids"}, `"ids" is declared twice`},
		"an output twice":                          {[]string{"model.output_names=[a, a]"}, `"a" is listed twice`},
		"an output named like an input":            {[]string{"model.output_names=[ids]"}, "is also the name of an output"},
		"an input without a name":                  {[]string{"model.inputs.0.name=''"}, "a name is empty"},
		"a name with a space":                      {[]string{"model.output_names=['a b']"}, "holds a space"},
		"strings in PyTorch":                       {[]string{"model.inputs.2.dtype=string"}, "string tensors exist in ONNX only"},
		"an argument that is none":                 {[]string{"model.inputs.0.argument=a b"}, "is not a parameter such as"},
		"a range of one":                           {[]string{"model.inputs.0.range=[1]"}, "want [low, high], got 1 values"},
		"an upside-down range":                     {[]string{"model.inputs.0.range=[5, 1]"}, "low 5 is above high 1"},
		"an upside-down float range":               {[]string{"model.inputs.2.range=[5.5, 1]"}, "low 5.5 is above high 1"},
		"a range that does not fit":                {[]string{"model.inputs.1.range=[0, 2]"}, "[0, 2] does not fit into bool, which holds 0 to 1"},
		"floats for an integer range":              {[]string{"model.inputs.0.range=[0.5, 2]"}, "want integers of 64 bits for int64"},
		"a point of an unknown input":              {[]string{"validation.points=[{idz: [1, 8]}]"}, "no input has this name; did you mean ids?"},
		"a point of another rank":                  {[]string{"validation.points=[{ids: [1], mask: [1, 8]}]"}, "has 1 dimensions, but ids has 2"},
		"a point without an input":                 {[]string{"validation.points=[{ids: [1, 8]}]"}, "mask is dynamic and has no shape here"},
		"a point outside":                          {[]string{"validation.points=[{ids: [17, 8], mask: [17, 8]}]"}, "dimension 0 of ids is 17, profile 0 allows 1 to 16"},
		"a point with two sizes":                   {[]string{"validation.points=[{ids: [2, 8], mask: [3, 8]}]"}, "batch is 2 for ids"},
		"limits of an unknown output":              {[]string{"validation.outputs.poold.atol=1"}, "no output has the name poold; did you mean pooled?"},
		"a task on an unknown output":              {[]string{"validation.task={data: d.npz, output: x}"}, "no output has the name x; known: hidden, pooled"},
		"a task without data":                      {[]string{"validation.task={}"}, "validation.task.data: is missing"},
		"labels of an unknown output":              {[]string{"triton.labels={x: l.txt}"}, "no output has the name x"},
		"a precision that is not built":            {[]string{"triton.precision=int8"}, "int8 is not among tensorrt.precisions (fp32, fp16)"},
		"no precision":                             {[]string{"tensorrt.precisions=[]"}, "is empty; name at least one"},
		"no batch size":                            {[]string{"benchmark.batch_sizes=[]"}, "batch_sizes: is empty"},
		"no concurrency":                           {[]string{"benchmark.concurrency=[]"}, "concurrency: is empty"},
		"no protocol":                              {[]string{"triton.protocols=[]"}, "name http, grpc or both"},
		"an option as an image":                    {[]string{"triton.image=--privileged"}, "starts with a dash"},
		"an image with a space":                    {[]string{"triton.image=a b"}, "is no image reference"},
		"an option as a server":                    {[]string{"triton.server=-x"}, "starts with a dash; it is no executable"},
		"two servers":                              {[]string{"triton.server=/x", "triton.image=a"}, "exclude each other"},
		"an address that is none":                  {[]string{"triton.bind_address=here"}, "is no IP address"},
		"GPUs that are none":                       {[]string{"triton.gpus='0;1'"}, "is not all, none"},
		"one port twice":                           {[]string{"triton.http_port=8000", "triton.grpc_port=8000"}, "8000 is already http_port"},
		"a port that is none":                      {[]string{"triton.http_port=70000"}, "70000 is not between 0 and 65535"},
		"a model name for Triton":                  {[]string{"triton.model_name=../x"}, "is no name"},
		"two version policies":                     {[]string{"triton.version_policy={all: {}, latest: {num_versions: 1}}"}, "give one"},
		"a version policy that is none":            {[]string{"triton.version_policy={lates: {}}"}, "did you mean latest?"},
		"latest without a number":                  {[]string{"triton.version_policy={latest: {num_versions: 0}}"}, "want {num_versions: n}"},
		"all with a number":                        {[]string{"triton.version_policy={all: {n: 1}}"}, "want {}"},
		"specific without versions":                {[]string{"triton.version_policy={specific: {versions: [0]}}"}, "want {versions: [1, 2]}"},
		"a crop of three":                          {[]string{"calibration.preprocess.crop=[1, 2, 3]"}, "want [height, width]"},
		"mean and std that differ":                 {[]string{"calibration.preprocess={mean: [1, 2, 3], std: [1]}"}, "has 1 values, but mean has 3"},
		"a std of zero":                            {[]string{"calibration.preprocess.std=[0]"}, "values are divided by it"},
		"an upside-down pixel range":               {[]string{"calibration.preprocess.range=[1, 0]"}, "want [low, high]"},
		"a budget without a limit":                 {[]string{"gate.budgets=[{metric: nodes}]"}, "has no limit"},
		"a budget without a metric":                {[]string{"gate.budgets=[{max: 1}]"}, "metric: is missing"},
		"a budget that nothing meets":              {[]string{"gate.budgets=[{metric: nodes, max: 1, min: 2}]"}, "2 is above max 1"},
		"a budget on an unknown column":            {[]string{"gate.budgets=[{metric: nodes, max: 1, where: {batsh: 1}}]"}, "did you mean batch?"},
		"version-compatible plans without weights": {[]string{"tensorrt.strip_weights=true", "tensorrt.version_compatible=true"}, "exclude each other"},
		"constraints on strongly typed engines":    {[]string{"tensorrt.precision_constraints=obey"}, "needs tensorrt.typing: weak"},
		"refitting calibrated plans":               {[]string{"tensorrt.precisions=[int8]", "calibration.cache=c", "tensorrt.typing=weak", "tensorrt.refittable=true"}, "exclude each other"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(two), "c.yaml", Options{Set: tc.set})
			got := strings.Join(problemsOf(err), "\n")
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestWhatIsRightIsAccepted(t *testing.T) {
	for name, set := range map[string][]string{
		"as it is":                      nil,
		"int8 with a cache":             {"tensorrt.precisions=[int8]", "calibration.cache=c.cache"},
		"int8 with synthetic data":      {"tensorrt.precisions=[int8]", "calibration.dataset=synthetic"},
		"ONNX without inputs":           {"model.kind=onnx", "model.factory=", "model.inputs=[]", "triton.max_batch_size=16"},
		"TorchScript that is trusted":   {"model.kind=torchscript", "model.factory=", "model.trust_source=true"},
		"a lower max_batch_size":        {"triton.max_batch_size=4", "triton.dynamic_batching.preferred_batch_size=[4]"},
		"a fixed input in a profile":    {"model.inputs.2.shape=[1]", "tensorrt.profiles.0.inputs.scale={min: [1], opt: [1], max: [1]}"},
		"a nested argument":             {"model.inputs.0.argument=batch.ids", "model.inputs.1.argument=states.0"},
		"an image with a digest":        {"triton.image=nvcr.io/nvidia/tritonserver:24.10-py3@sha256:" + strings.Repeat("a", 64)},
		"all versions":                  {"triton.version_policy={all: {}}"},
		"two versions":                  {"triton.version_policy={specific: {versions: [1, 2]}}"},
		"GPUs":                          {"triton.gpus=0,GPU-1234-5678"},
		"the float32 ONNX":              {"target=onnxruntime", "tensorrt.precisions=[fp16]", "triton.precision=fp32"},
		"a point within":                {"validation.points=[{ids: [3, 9], mask: [3, 9]}]"},
		"a batch of the second profile": {"tensorrt.profiles.1.inputs={ids: {min: [32, 8], opt: [32, 8], max: [64, 8]}, mask: {min: [32, 8], opt: [32, 8], max: [64, 8]}}", "benchmark.batch_sizes=[16, 48]"},
	} {
		t.Run(name, func(t *testing.T) { parse(t, two, set...) })
	}
}

func TestDefaultsFollowTheModel(t *testing.T) {
	c := parse(t, small, "tensorrt.profiles.0.inputs.x={min: [2, 16], opt: [4, 16], max: [4, 16]}")
	if c.Benchmark.BatchSizes[0] != 4 || c.Calibration.BatchSize != 4 {
		t.Errorf("batch sizes %v, calibration %d", c.Benchmark.BatchSizes, c.Calibration.BatchSize)
	}
	c = parse(t, small, "model.inputs.0.shape=[5, 16]", "tensorrt.profiles=[]")
	if c.Benchmark.BatchSizes[0] != 5 || c.Calibration.BatchSize != 5 {
		t.Errorf("batch sizes %v, calibration %d", c.Benchmark.BatchSizes, c.Calibration.BatchSize)
	}
	_, err := Parse([]byte(small), "c.yaml", Options{Set: []string{"model.inputs.0.shape=[5, 16]", "tensorrt.profiles=[]", "benchmark.batch_sizes=[4]"}})
	expectProblems(t, err, "batch 4 is not the model's fixed first dimension 5")
}
