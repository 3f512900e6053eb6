// Package config is trtship.yaml: its fields, defaults, strict reading with
// every error at once and its line, overrides, and the JSON schema.
//
// The structs below are the one table of settings. The tag "yaml" names a key,
// "desc" documents it, "default" is its default as YAML, "enum" lists what is
// allowed (|-separated), "keys" lists the keys of a map, "min" and "max" bound
// numbers, "unique" marks lists without repetition, "unit" is a unit, "path" marks
// an input path, which is relative to the file, and "holds" says that a file must
// be there, where a folder would do otherwise. The reference, the schema and the
// starter file are made from them.
package config

// Config is a whole configuration, defaults filled in, input paths absolute.
type Config struct {
	Model       Model       `yaml:"model" desc:"The model, where it comes from, and what goes in and out."`
	Target      string      `yaml:"target" default:"tensorrt" enum:"tensorrt|onnxruntime" desc:"What package ships: TensorRT plans, or the optimized ONNX for Triton's onnxruntime backend."`
	Export      Export      `yaml:"export" desc:"From PyTorch to ONNX."`
	Optimize    Optimize    `yaml:"optimize" desc:"Graph clean-up."`
	Validation  Validation  `yaml:"validation" desc:"How outputs are compared with the reference."`
	TensorRT    TensorRT    `yaml:"tensorrt" desc:"Precisions, shape profiles and how engines are built."`
	Calibration Calibration `yaml:"calibration" desc:"Data and method for INT8 scales. Needed when precisions has int8."`
	Quantize    Quantize    `yaml:"quantize" desc:"How precision graphs are written."`
	Benchmark   Benchmark   `yaml:"benchmark" desc:"What is measured and for how long."`
	Triton      Triton      `yaml:"triton" desc:"The model repository and the server."`
	Gate        Gate        `yaml:"gate" desc:"What lets a change through."`

	// Path is the file as it was named, Dir its absolute folder. Both are empty for a configuration without a file.
	Path string `yaml:"-"`
	Dir  string `yaml:"-"`
	// Lines gives the line of each key that the file sets, by dotted path, for
	// errors and annotations found later.
	Lines map[string]int `yaml:"-"`
	// Overrides gives the source of each key that the environment or --set
	// gives, such as "--set export.opset".
	Overrides map[string]string `yaml:"-"`
}

// Model says what to ship.
type Model struct {
	Name        string         `yaml:"name" desc:"Name of the model, also in Triton: letters, digits, dot, dash, underscore."`
	Kind        string         `yaml:"kind" default:"module" enum:"module|checkpoint|torchscript|onnx" desc:"module: a factory. checkpoint: a state dict and a factory. torchscript: an archive. onnx: a file."`
	Factory     string         `yaml:"factory" desc:"package.module:callable that returns an nn.Module (module, checkpoint)."`
	FactoryArgs map[string]any `yaml:"factory_args" desc:"Keyword arguments of the factory."`
	Path        string         `yaml:"path" path:"input" holds:"file" desc:"Weights, TorchScript archive or ONNX file."`
	PythonPath  []string       `yaml:"python_path" path:"input" unique:"true" desc:"Folders put on sys.path after the configuration's own folder."`
	TrustSource bool           `yaml:"trust_source" default:"false" desc:"Allows what executes while loading: TorchScript archives and pickled checkpoints."`
	Inputs      []Input        `yaml:"inputs" desc:"Inputs in the order of forward. May be left out for kind onnx."`
	OutputNames []string       `yaml:"output_names" desc:"Names of the outputs, in order."`
	AllowTrain  []string       `yaml:"allow_training_mode" desc:"Modules or nodes that may stay in training mode (patterns)."`
}

// Input is one declared input.
type Input struct {
	Name     string   `yaml:"name" desc:"Name in ONNX, TensorRT and Triton."`
	DType    string   `yaml:"dtype" enum:"float32|float16|bfloat16|float64|int64|int32|int16|int8|uint8|bool|string" default:"float32" desc:"Element type: float32, float16, bfloat16, float64, int64, int32, int16, int8, uint8, bool, string."`
	Shape    []Dim    `yaml:"shape" desc:"Integers are fixed sizes, strings are dynamic dimensions; equal strings have equal sizes."`
	Range    []Scalar `yaml:"range" desc:"[low, high], both included, of generated values."`
	Argument string   `yaml:"argument" desc:"Where the value goes in forward: a parameter name, a.b for a dict entry, a.0 for a tuple or list element. Default: the position."`
	Optional bool     `yaml:"optional" default:"false" desc:"The model may ignore this input; the export may drop it."`
}

// Dim is a fixed size, or a symbol if Symbol is not empty.
type Dim struct {
	Size   int64
	Symbol string
}

// Scalar is an integer or floating-point value of an input's range, kept as text so that 64-bit integers are exact.
type Scalar string

// Export is the export stage.
type Export struct {
	Opset        int    `yaml:"opset" min:"9" max:"25" default:"17" desc:"ONNX operator set."`
	Dynamo       bool   `yaml:"dynamo" default:"false" desc:"Use the torch.export-based exporter instead of the TorchScript one."`
	ExternalData bool   `yaml:"external_data" default:"false" desc:"Keep weights in a second file; always done above 2 GB."`
	ConstantFold bool   `yaml:"constant_folding" default:"true" desc:"Let the exporter fold constants."`
	Device       string `yaml:"device" default:"cpu" enum:"cpu|cuda" desc:"Where the PyTorch model runs."`
	TimeoutS     int    `yaml:"timeout_s" min:"1" max:"604800" default:"1800" unit:"s" desc:"Time limit of each Python child."`
	MemoryMB     int    `yaml:"memory_mb" min:"0" max:"16777216" default:"0" unit:"MiB" desc:"Address-space limit of Python children; 0 is none."`
}

// Optimize is the optimize stage.
type Optimize struct {
	Enabled bool     `yaml:"enabled" default:"true" desc:"Turn the passes off and ship the exported graph."`
	Skip    []string `yaml:"skip_passes" unique:"true" desc:"Passes to leave out, by name."`
	FoldMB  int      `yaml:"fold_limit_mb" min:"0" max:"2048" default:"16" unit:"MiB" desc:"Largest constant that folding may make."`
	IR      int      `yaml:"ir_version" min:"0" max:"13" default:"0" desc:"ONNX IR version to write; 0 keeps it."`
}

// Validation is shared by all comparisons.
type Validation struct {
	NumSamples  int                     `yaml:"num_samples" min:"1" max:"10000" default:"4" desc:"Samples at each point."`
	Seed        int64                   `yaml:"seed" default:"0" desc:"Seed of generated inputs."`
	Inputs      []string                `yaml:"inputs" path:"input" unique:"true" desc:"Your own inputs: .npz files (one array an input), or folders with one .npy an input."`
	OffProfile  bool                    `yaml:"extra_point" default:"true" desc:"Add a size that is none of min, opt and max."`
	Points      []map[string][]int64    `yaml:"points" max:"2147483647" desc:"Further points: shapes by input."`
	Tolerances  map[string]Tolerance    `yaml:"tolerances" keys:"onnx|fp32|fp16|bf16|int8" desc:"By precision: onnx (exported and optimized graphs), fp32, fp16, bf16, int8."`
	Outputs     map[string]OutputLimits `yaml:"outputs" desc:"By output: tolerances that replace those of the precision."`
	AllowRandom bool                    `yaml:"allow_random" default:"false" desc:"Let a model with random operators through without a comparison of values."`
	Task        *Task                   `yaml:"task" desc:"A metric on labelled data."`
	TimeoutS    int                     `yaml:"timeout_s" min:"1" max:"604800" default:"600" unit:"s" desc:"Time limit of each child."`
	MemoryMB    int                     `yaml:"memory_mb" min:"0" max:"16777216" default:"0" unit:"MiB" desc:"Address-space limit of ONNX Runtime children; 0 is none."`
	Threads     int                     `yaml:"threads" min:"1" max:"1024" default:"1" desc:"Threads of a validation session; fixed, so that results repeat."`
}

// Tolerance: |got-ref| <= atol + rtol*|ref|, and the minimum over samples of cosine similarity. Nil fields keep the default.
type Tolerance struct {
	Atol        *float64 `yaml:"atol" min:"0" desc:"Absolute part."`
	Rtol        *float64 `yaml:"rtol" min:"0" desc:"Relative part."`
	CosineMin   *float64 `yaml:"cosine_min" min:"-1" max:"1" desc:"Smallest cosine similarity of a sample."`
	Top1Min     *float64 `yaml:"top1_min" min:"0" max:"1" desc:"Smallest fraction of samples whose largest element agrees."`
	MaxBreaches *float64 `yaml:"max_breaches" min:"0" max:"1" desc:"Fraction of elements that may lie outside atol and rtol."`
	AllowNaN    *bool    `yaml:"allow_nan" desc:"NaN equals NaN."`
}

// OutputLimits are the tolerances of one output: for all precisions, or by precision.
type OutputLimits struct {
	Tolerance   `yaml:",inline"`
	ByPrecision map[string]Tolerance `yaml:"tolerances" keys:"onnx|fp32|fp16|bf16|int8" desc:"By precision."`
}

// Task is a metric on labelled data.
type Task struct {
	Metric         string  `yaml:"metric" default:"accuracy" enum:"accuracy" desc:"accuracy: the largest element of the output is the label."`
	Data           string  `yaml:"data" path:"input" holds:"file" desc:".npz with one array an input and one of labels."`
	Labels         string  `yaml:"labels" default:"labels" desc:"Name of the array of labels."`
	Output         string  `yaml:"output" desc:"Output that is judged; the first by default."`
	MaxDegradation float64 `yaml:"max_degradation" min:"0" max:"1" default:"0.01" desc:"How much lower than the reference the metric may be, absolute."`
	Batch          int     `yaml:"batch" min:"0" max:"2147483647" default:"0" desc:"Samples a run; 0 is the profile's opt."`
}

// TensorRT says which engines are built and how.
type TensorRT struct {
	Precisions        []string       `yaml:"precisions" default:"[fp32]" enum:"fp32|fp16|bf16|int8" desc:"One engine (or, for target onnxruntime, one preview) for each."`
	Profiles          []Profile      `yaml:"profiles" desc:"Optimization profiles; needed when an input is dynamic."`
	Typing            string         `yaml:"typing" default:"strong" enum:"strong|weak" desc:"strong: precision is in the graph. weak: builder flags and the calibration cache (TensorRT 10 and older)."`
	Constraints       string         `yaml:"precision_constraints" default:"none" enum:"none|prefer|obey" desc:"With weak typing: whether convolutions and matrix products must compute in the engine's precision. none: TensorRT takes what is fastest."`
	WorkspaceMB       int            `yaml:"workspace_mb" min:"1" max:"1048576" default:"1024" unit:"MiB" desc:"Workspace memory pool of the builder."`
	Int8FP16Fallback  bool           `yaml:"int8_fp16_fallback" default:"true" desc:"The floating-point part of an INT8 engine runs in FP16."`
	TF32              bool           `yaml:"tf32" default:"false" desc:"Let float32 layers round their inputs to TF32 (10 bits of mantissa) for speed."`
	OptimizationLevel int            `yaml:"optimization_level" min:"0" max:"5" default:"3" desc:"Builder optimization level, 0 to 5."`
	TimingCache       string         `yaml:"timing_cache" path:"input" holds:"file" desc:"Timing cache to start from."`
	HardwareCompat    string         `yaml:"hardware_compatibility" default:"none" enum:"none|ampere_plus|same_compute_capability" desc:"GPUs that the plan loads on."`
	VersionCompatible bool           `yaml:"version_compatible" default:"false" desc:"Plans that later TensorRT releases load."`
	Refittable        bool           `yaml:"refittable" default:"false" desc:"Weights of the plan can be replaced."`
	StripWeights      bool           `yaml:"strip_weights" default:"false" desc:"Plans without weights, refitted when loaded."`
	Device            string         `yaml:"device" default:"0" desc:"GPU index, GPU UUID (GPU-...) or MIG device (MIG-...)."`
	BuildTimeoutS     int            `yaml:"build_timeout_s" min:"1" max:"604800" default:"3600" unit:"s" desc:"Time limit of one build."`
	MemoryPoolMB      map[string]int `yaml:"memory_pools_mb" keys:"dla_managed_sram|dla_local_dram|dla_global_dram|tactic_dram|tactic_shared_memory" min:"0" max:"1048576" unit:"MiB" desc:"Further builder memory pools by TensorRT's name."`
}

// Profile is one optimization profile.
type Profile struct {
	Inputs map[string]ShapeRange `yaml:"inputs" desc:"min, opt and max shape of each dynamic input."`
}

// ShapeRange is the range of one input's shape.
type ShapeRange struct {
	Min []int64 `yaml:"min" min:"1" max:"2147483647" desc:"Smallest shape."`
	Opt []int64 `yaml:"opt" min:"1" max:"2147483647" desc:"Shape that is tuned for."`
	Max []int64 `yaml:"max" min:"1" max:"2147483647" desc:"Largest shape."`
}

// Calibration is the data and the method of INT8 calibration.
type Calibration struct {
	Dataset         string     `yaml:"dataset" default:"numpy" enum:"images|numpy|synthetic" desc:"images: a folder of pictures. numpy: .npy or .npz files. synthetic: random, not representative."`
	Path            string     `yaml:"path" path:"input" desc:"Folder or file of the data."`
	Input           string     `yaml:"input" desc:"Input that images go to; the only floating-point input by default."`
	NumSamples      int        `yaml:"num_samples" min:"1" max:"10000000" default:"128" desc:"Samples to use; fewer than min_samples is refused."`
	MinSamples      int        `yaml:"min_samples" min:"1" max:"10000000" default:"16" desc:"Least number of samples."`
	BatchSize       int        `yaml:"batch_size" min:"1" max:"2147483647" default:"8" desc:"Samples a run."`
	Method          string     `yaml:"method" default:"entropy" enum:"entropy|entropy-ort|minmax|percentile" desc:"How a range is chosen."`
	Percentile      float64    `yaml:"percentile" min:"50" max:"100" default:"99.99" desc:"For method percentile."`
	Seed            int64      `yaml:"seed" default:"0" desc:"Seed of the sampling."`
	AllowSynthetic  bool       `yaml:"allow_synthetic" default:"false" desc:"Allow random data; the result is marked as not representative."`
	Cache           string     `yaml:"cache" path:"input" holds:"file" desc:"Use this cache instead of calibrating; every mismatch is an error."`
	TensorRTVersion string     `yaml:"tensorrt_version" desc:"Version in the cache's header; that of the target's build by default."`
	Preprocess      Preprocess `yaml:"preprocess" desc:"From a picture to a tensor."`
}

// Preprocess turns a picture into a tensor.
type Preprocess struct {
	Resize int       `yaml:"resize" min:"0" max:"65535" default:"0" desc:"Shorter side after resizing, in pixels; 0 resizes to the crop."`
	Crop   []int     `yaml:"crop" min:"1" max:"65535" desc:"[height, width] of the centre crop; the input's size by default."`
	Order  string    `yaml:"channel_order" default:"rgb" enum:"rgb|bgr|gray" desc:"Order of the channels."`
	Layout string    `yaml:"layout" default:"nchw" enum:"nchw|nhwc" desc:"Order of the axes."`
	Scale  float64   `yaml:"scale" default:"0.00392156862745098" desc:"Factor of the 8-bit values."`
	Mean   []float64 `yaml:"mean" desc:"Subtracted after scaling, one value a channel."`
	Std    []float64 `yaml:"std" desc:"Divided by after the mean, one value a channel."`
	Filter string    `yaml:"filter" default:"bilinear" enum:"nearest|bilinear|bicubic" desc:"Interpolation of the resize."`
	Range  []float64 `yaml:"range" desc:"[low, high] that values must stay in afterwards."`
}

// Quantize says how precision graphs are written.
type Quantize struct {
	KeepFP32   []string `yaml:"keep_fp32" desc:"Nodes that stay float32: node names, op:Type, or patterns with *."`
	KeepIO     bool     `yaml:"keep_io_float32" default:"true" desc:"Inputs and outputs stay float32."`
	Exclude    []string `yaml:"int8_exclude" desc:"Nodes that are not quantized, as in keep_fp32."`
	PerChannel bool     `yaml:"per_channel" default:"true" desc:"Weights have one scale a channel."`
}

// Benchmark says what is measured.
type Benchmark struct {
	Enabled     bool    `yaml:"enabled" default:"true" desc:"Turn the stage off."`
	WarmupIters int     `yaml:"warmup_iters" min:"0" max:"10000000" default:"10" desc:"Requests before timing, at least."`
	Iters       int     `yaml:"iters" min:"1" max:"10000000" default:"100" desc:"Timed requests of each worker."`
	Loads       int     `yaml:"loads" min:"1" max:"100" default:"5" desc:"How often an engine is loaded for these requests: its speed depends on where it lies in the GPU's memory."`
	BatchSizes  []int   `yaml:"batch_sizes" min:"1" max:"2147483647" unique:"true" default:"[1]" desc:"Batch sizes, each within the profile."`
	Concurrency []int   `yaml:"concurrency" min:"1" max:"1024" unique:"true" default:"[1]" desc:"Requests at a time; every pair with a batch size is measured."`
	CUDAGraph   string  `yaml:"cuda_graph" default:"both" enum:"on|off|both" desc:"Capture the engine in a CUDA graph."`
	Baseline    bool    `yaml:"onnx_baseline" default:"true" desc:"Also measure ONNX Runtime on the CPU."`
	MaxSeconds  int     `yaml:"max_seconds" min:"1" max:"604800" default:"120" unit:"s" desc:"Time limit of one measurement."`
	Margin      float64 `yaml:"margin" min:"0" max:"1" default:"0.01" desc:"Ratio of medians inside which two measurements are the same."`
	Seed        int64   `yaml:"seed" default:"0" desc:"Seed of the inputs."`
	Threads     int     `yaml:"threads" min:"0" max:"1024" default:"0" desc:"Threads of ONNX Runtime; 0 is its default."`
}

// Triton is the model repository and the server.
type Triton struct {
	ModelName       string            `yaml:"model_name" desc:"Name in the repository; model.name by default."`
	Version         int               `yaml:"version" min:"0" max:"2147483647" default:"0" desc:"Version folder; 0 is the next free one."`
	Precision       string            `yaml:"precision" desc:"Precision that is packaged; the last of tensorrt.precisions by default."`
	MaxBatchSize    *int              `yaml:"max_batch_size" min:"0" max:"2147483647" desc:"Only lowers the model's own limit; 0 turns batching off."`
	InstanceGroups  []InstanceGroup   `yaml:"instance_groups" desc:"Where instances run and how many."`
	DynamicBatching *DynamicBatching  `yaml:"dynamic_batching" desc:"Let the server merge requests."`
	VersionPolicy   map[string]any    `yaml:"version_policy" desc:"latest: {num_versions: n}, all: {}, or specific: {versions: [..]}."`
	Warmup          bool              `yaml:"warmup" default:"false" desc:"Run a real sample before the model is ready."`
	ResponseCache   bool              `yaml:"response_cache" default:"false" desc:"Let the server answer equal requests from its cache."`
	CUDAGraphs      bool              `yaml:"cuda_graphs" default:"false" desc:"optimization.cuda.graphs (TensorRT plans)."`
	Labels          map[string]string `yaml:"labels" path:"input" holds:"file" desc:"File of labels by output."`
	Parameters      map[string]string `yaml:"parameters" desc:"Free parameters of the backend."`
	Extra           string            `yaml:"config_append" desc:"Text added to config.pbtxt, for what has no key here (sequence batching, ensembles)."`
	Image           string            `yaml:"image" desc:"Container image of the server. There is no default: a plan loads only in its own TensorRT release."`
	Server          string            `yaml:"server" desc:"A tritonserver executable; that of PATH or of the locked environment by default."`
	BindAddress     string            `yaml:"bind_address" default:"127.0.0.1" desc:"Address of the ports. Triton has no authentication: another address exposes it."`
	HTTPPort        int               `yaml:"http_port" min:"0" max:"65535" default:"0" desc:"0 chooses a free port for served, 8000 for serve."`
	GRPCPort        int               `yaml:"grpc_port" min:"0" max:"65535" default:"0" desc:"0 chooses a free port for served, 8001 for serve."`
	MetricsPort     int               `yaml:"metrics_port" min:"0" max:"65535" default:"0" desc:"0 chooses a free port for served, 8002 for serve."`
	GPUs            string            `yaml:"gpus" desc:"GPUs of the container: all, or indexes and UUIDs with commas."`
	SharedMemoryMB  int               `yaml:"shm_mb" min:"1" max:"1048576" default:"256" unit:"MiB" desc:"/dev/shm of the container."`
	MemoryMB        int               `yaml:"memory_mb" min:"0" max:"16777216" default:"0" unit:"MiB" desc:"Limit of the server: a container's memory, a process's address space (of each process; CUDA reserves far more of that than it uses). 0 is none."`
	ReadyTimeoutS   int               `yaml:"ready_timeout_s" min:"1" max:"604800" default:"120" unit:"s" desc:"How long to wait for the model."`
	Verbose         bool              `yaml:"log_verbose" default:"false" desc:"Verbose server log."`
	Protocols       []string          `yaml:"protocols" default:"[http, grpc]" enum:"http|grpc" desc:"Protocols that served compares over."`
}

// InstanceGroup is one group of instances.
type InstanceGroup struct {
	Kind  string `yaml:"kind" default:"auto" enum:"auto|gpu|cpu" desc:"auto: gpu for plans, cpu for ONNX."`
	Count int    `yaml:"count" min:"1" max:"1024" default:"1" desc:"Instances on each device."`
	GPUs  []int  `yaml:"gpus" min:"0" max:"1024" unique:"true" desc:"Device indexes; all by default."`
}

// DynamicBatching lets the server merge requests.
type DynamicBatching struct {
	PreferredSizes []int        `yaml:"preferred_batch_size" min:"1" max:"2147483647" unique:"true" desc:"Sizes to wait for."`
	MaxDelayUS     int64        `yaml:"max_queue_delay_us" min:"0" max:"86400000000" default:"0" unit:"µs" desc:"How long to wait."`
	PreserveOrder  bool         `yaml:"preserve_ordering" default:"false" desc:"Answer in the order of arrival."`
	PriorityLevels int          `yaml:"priority_levels" min:"0" max:"1000000" default:"0" desc:"Number of priorities."`
	DefaultLevel   int          `yaml:"default_priority_level" min:"0" max:"1000000" default:"0" desc:"Priority of requests without one."`
	Queue          *QueuePolicy `yaml:"queue_policy" desc:"Default queue policy."`
}

// QueuePolicy bounds the queue.
type QueuePolicy struct {
	TimeoutAction string `yaml:"timeout_action" default:"reject" enum:"reject|delay" desc:"What happens to a request that waited too long."`
	TimeoutUS     int64  `yaml:"default_timeout_us" min:"0" max:"86400000000" default:"0" unit:"µs" desc:"How long a request may wait."`
	AllowOverride bool   `yaml:"allow_timeout_override" default:"false" desc:"A request may shorten its own timeout."`
	MaxSize       int    `yaml:"max_queue_size" min:"0" max:"100000" default:"0" desc:"Requests in the queue; 0 is no limit."`
}

// Gate is what lets a change through.
type Gate struct {
	Hardware string   `yaml:"hardware" default:"auto" enum:"auto|required|optional" desc:"Whether hardware steps that did not run fail the gate. auto: required in CI (CI=true when the run is made), optional elsewhere."`
	Budgets  []Budget `yaml:"budgets" desc:"Limits on measured quantities."`
}

// Budget is one limit, absolute or relative to the baseline.
type Budget struct {
	Metric  string            `yaml:"metric" enum:"latency_p50_ms|latency_p90_ms|latency_p95_ms|latency_p99_ms|latency_mean_ms|throughput|engine_bytes|gpu_memory_bytes|peak_rss_bytes|load_ms|build_seconds|cold_ms|accuracy|onnx_bytes|nodes" desc:"What is measured."`
	Where   map[string]string `yaml:"where" keys:"precision|backend|batch|concurrency|mode|device" desc:"Restricts rows: precision, backend, batch, concurrency, mode."`
	Max     *float64          `yaml:"max" desc:"Largest value."`
	Min     *float64          `yaml:"min" desc:"Smallest value."`
	MaxRise *float64          `yaml:"max_rise" min:"0" desc:"Largest rise over the baseline, as a fraction."`
	MaxDrop *float64          `yaml:"max_drop" min:"0" max:"1" desc:"Largest fall below the baseline, as a fraction."`
}
