package report

// Inspection is what the inspect stage found out about a model before export.
type Inspection struct {
	Parameters           int64            `json:"parameters"`
	TrainableParameters  int64            `json:"trainable_parameters"`
	ParameterBytes       int64            `json:"parameter_bytes"`
	ActivationUpperBound int64            `json:"activation_upper_bound_bytes"` // sum of every leaf module's outputs, not a peak
	Inputs               []Tensor         `json:"inputs"`
	Outputs              []Tensor         `json:"outputs"`
	Operators            map[string]int   `json:"operators,omitempty"` // module types or ONNX operators, with counts
	DTypes               map[string]int64 `json:"dtypes,omitempty"`    // parameters by data type
	Findings             []Finding        `json:"findings,omitempty"`
	Ranges               []IntegerRange   `json:"integer_ranges,omitempty"`
}

// Finding is something about a graph or a module that a reader should know.
type Finding struct {
	Kind   string   `json:"kind"` // e.g. training-mode, random-operator, fp16-range, int64-range, overridable-initializer
	Nodes  []string `json:"nodes,omitempty"`
	Text   string   `json:"text"`
	Severe bool     `json:"severe,omitempty"` // becomes a failed check unless allowed
}

// IntegerRange is the closed interval that generated values of an integer input
// stay in, and where it comes from.
type IntegerRange struct {
	Input  string `json:"input"`
	Low    int64  `json:"low"`
	High   int64  `json:"high"`
	Source string `json:"source"` // "configuration", "Gather /emb/Gather (table of 10 rows)", "default"
}

// Optimization is what the passes did to a graph.
type Optimization struct {
	NodesBefore int          `json:"nodes_before"`
	NodesAfter  int          `json:"nodes_after"`
	BytesBefore int64        `json:"bytes_before"`
	BytesAfter  int64        `json:"bytes_after"`
	Passes      []PassResult `json:"passes"`
	Notes       []string     `json:"notes,omitempty"`
}

// PassResult is one pass: how much it changed, or why it was dropped.
type PassResult struct {
	Name    string `json:"name"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"` // nodes fewer than before
	Dropped string `json:"dropped,omitempty"`
}

// Validation is one comparison of a candidate with the reference: every output
// at every point.
type Validation struct {
	Stage     string       `json:"stage"`
	Candidate string       `json:"candidate"` // e.g. "ONNX Runtime 1.30.0, graph optimisation off"
	Reference string       `json:"reference"`
	Precision string       `json:"precision,omitempty"`
	Preview   bool         `json:"preview,omitempty"`
	Seed      int64        `json:"seed"`
	Points    []Point      `json:"points"`
	Rows      []Comparison `json:"rows"`
	Task      *Task        `json:"task,omitempty"`
	Stored    Stored       `json:"stored"`
	Notes     []string     `json:"notes,omitempty"`
}

// Stored names the artifacts that hold the compared numbers, for recheck.
type Stored struct {
	Reference string `json:"reference,omitempty"` // artifact id
	Candidate string `json:"candidate,omitempty"` // artifact id
}

// Point is one set of input shapes.
type Point struct {
	Name    string             `json:"name"`
	Shapes  map[string][]int64 `json:"shapes"`
	Samples int                `json:"samples"`
}

// Comparison is one output at one point, over all samples.
type Comparison struct {
	Output    string            `json:"output"`
	Point     string            `json:"point"`
	DType     string            `json:"dtype"`
	Shape     []int64           `json:"shape"`               // of the reference
	GotShape  []int64           `json:"got_shape,omitempty"` // where it differs
	Elements  int64             `json:"elements"`            // compared
	Breaches  int64             `json:"breaches"`            // elements outside the tolerance
	First     []int64           `json:"first,omitempty"`     // index of the first breach, with the sample in front
	NaN       [2]int64          `json:"nan"`                 // reference, candidate
	Inf       [2]int64          `json:"inf"`                 // reference, candidate
	Metrics   map[string]Number `json:"metrics,omitempty"`   // max_abs mean_abs max_rel rmse p50 p90 p99 p999 psnr_db cosine_min top1 kl
	Histogram *Histogram        `json:"histogram,omitempty"` // of |got - reference|
	Tolerance Tolerance         `json:"tolerance"`
	Verdict   Verdict           `json:"verdict"`
	Detail    string            `json:"detail,omitempty"`
}

// Tolerance says when two elements are equal enough: |got-ref| <= Atol + Rtol*|ref|.
type Tolerance struct {
	Atol      Number  `json:"atol"`
	Rtol      Number  `json:"rtol"`
	CosineMin *Number `json:"cosine_min,omitempty"` // minimum over samples
	TopK      *Number `json:"top1_min,omitempty"`   // fraction of samples whose top-1 agrees
	AllowNaN  bool    `json:"allow_nan,omitempty"`  // NaN equals NaN
	// MaxBreaches is the fraction of elements that may lie outside; 0 unless set.
	MaxBreaches Number `json:"max_breaches,omitempty"`
}

// Histogram has len(Counts)+1 edges.
type Histogram struct {
	Edges  []Number `json:"edges"`
	Counts []int64  `json:"counts"`
}

// Task is a metric on labelled data, for the reference and for a candidate.
type Task struct {
	Metric         string `json:"metric"`
	Samples        int    `json:"samples"`
	Reference      Number `json:"reference"`
	Candidate      Number `json:"candidate"`
	MaxDegradation Number `json:"max_degradation"`
}

// Benchmark is a set of measurements.
type Benchmark struct {
	Rows    []Measurement `json:"rows"`
	Skipped []SkippedRow  `json:"skipped,omitempty"`
	Notes   []string      `json:"notes,omitempty"`
}

// SkippedRow is a measurement that was asked for and not made.
type SkippedRow struct {
	Name    string  `json:"name"`
	Reason  string  `json:"reason"`
	Verdict Verdict `json:"verdict"`
}

// Measurement is one (backend, precision, batch, concurrency, mode).
type Measurement struct {
	Backend     string           `json:"backend"` // onnxruntime, tensorrt, triton
	Device      string           `json:"device"`  // cpu, or the GPU's name
	Precision   string           `json:"precision"`
	Batch       int              `json:"batch"`
	Concurrency int              `json:"concurrency"`
	Mode        string           `json:"mode,omitempty"` // e.g. "cuda-graph", "graph-optimisation=all threads=2"; modes that differ are never compared
	Requests    int              `json:"requests"`
	Errors      int              `json:"errors"`
	Warmup      int              `json:"warmup"`
	ColdMs      *Number          `json:"cold_ms"`
	LoadMs      *Number          `json:"load_ms"`
	Throughput  Number           `json:"throughput"` // samples a second
	Phases      map[string]Stats `json:"phases"`     // preprocess, execute, postprocess, end_to_end; h2d, compute, d2h, enqueue on a GPU
	// ComputeByLoad are the medians of compute of each loading of an engine.
	ComputeByLoad []Number     `json:"compute_by_load_ms,omitempty"`
	PeakRSS       int64        `json:"peak_rss_bytes"`
	GPUMemory     *int64       `json:"gpu_memory_bytes"` // null unless measured
	EngineBytes   *int64       `json:"engine_bytes,omitempty"`
	BuildSec      *Number      `json:"build_seconds,omitempty"`
	Samples       []Number     `json:"samples_ms"` // raw end-to-end samples, in order
	Clocks        *Clocks      `json:"clocks,omitempty"`
	Notes         []string     `json:"notes,omitempty"`
	Interleaved   *Interleaved `json:"interleaved,omitempty"`
}

// Interleaved is the row's engine or graph measured in alternation with the
// baseline's, on one machine in one go: the best evidence of a change that there
// is. Base and Head have a value for each block of requests, the median in
// milliseconds; the nth of both ran side by side. Where both digests are the same
// there is nothing to measure, and no blocks.
type Interleaved struct {
	Run        string   `json:"run"`         // of the baseline
	Baseline   string   `json:"baseline"`    // artifact id of its engine or graph
	BaseDigest string   `json:"base_digest"` // of that artifact
	HeadDigest string   `json:"head_digest"` // of this run's
	Metric     string   `json:"metric"`      // BlockCompute of an engine, BlockLatency in ONNX Runtime
	Base       []Number `json:"base_ms"`
	Head       []Number `json:"head_ms"`
}

// What the blocks of Interleaved are medians of.
const (
	BlockCompute = "compute_p50_ms"
	BlockLatency = "latency_p50_ms"
)

// Rival names the baseline's artifact.
func (il *Interleaved) Rival() string { return il.Baseline + " of run " + il.Run }

// Identical reports whether the baseline had the very same artifact.
func (il *Interleaved) Identical() bool { return il.BaseDigest == il.HeadDigest }

// Stats summarises samples in milliseconds. Percentiles are by linear
// interpolation between order statistics (numpy's default, R type 7).
type Stats struct {
	Count int    `json:"count"`
	Min   Number `json:"min"`
	Mean  Number `json:"mean"`
	Stdev Number `json:"stdev"` // sample standard deviation, n-1
	P50   Number `json:"p50"`
	P90   Number `json:"p90"`
	P95   Number `json:"p95"`
	P99   Number `json:"p99"`
	Max   Number `json:"max"`
}

// Clocks are NVML readings before and after a measurement.
type Clocks struct {
	SMMHz       [2]int    `json:"sm_mhz"`
	MemoryMHz   [2]int    `json:"memory_mhz"`
	PowerW      [2]Number `json:"power_w"`
	TempC       [2]int    `json:"temperature_c"`
	Throttle    [2]string `json:"throttle"`
	Persistence bool      `json:"persistence,omitempty"`
}
