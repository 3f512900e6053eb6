// Package report is the document that everything meets in. Stages produce
// checks and measurements; the gate, the renderings (JUnit, Markdown, HTML, the
// pull-request comment) and the next run's baseline are pure functions of one
// or two reports. The package imports nothing else of this project.
package report

import "time"

// Format is the tag of the document's schema. A reader refuses another one.
const Format = "trtship-report/1"

// Report is one run. It marshals to report.json; numbers that are not finite
// are written as the strings "NaN", "+Inf" and "-Inf" (see Number).
type Report struct {
	Format      string            `json:"format"`
	Tool        Tool              `json:"tool"`
	Run         Run               `json:"run"`
	Model       Model             `json:"model"`
	Settings    Settings          `json:"settings"`
	Environment Environment       `json:"environment"`
	Stages      []Stage           `json:"stages"`
	Inspection  *Inspection       `json:"inspection,omitempty"`
	Validations []Validation      `json:"validations,omitempty"`
	Optimize    *Optimization     `json:"optimize,omitempty"`
	Benchmark   *Benchmark        `json:"benchmark,omitempty"`
	Artifacts   []ArtifactSummary `json:"artifacts"`
	Notes       []string          `json:"notes,omitempty"`
	Verdict     Verdict           `json:"verdict"`
	ExitCode    int               `json:"exit_code"`
}

// Tool is the program that wrote the report.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
}

// Run says what was asked for and when.
type Run struct {
	ID         string    `json:"id"` // <date>_<hex>
	Started    time.Time `json:"started"`
	Seconds    float64   `json:"seconds"`
	Until      string    `json:"until,omitempty"`
	From       string    `json:"from,omitempty"`
	Only       []string  `json:"only,omitempty"`
	Config     string    `json:"config"` // path as given, never absolute
	ConfigHash string    `json:"config_digest"`
}

// Model is what the run is about.
type Model struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind"`
	Inputs []Tensor `json:"inputs,omitempty"`
	Output []Tensor `json:"outputs,omitempty"`
}

// Tensor is a declared or found input or output. Dims are sizes in decimal or
// symbols such as "batch".
type Tensor struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"`
	Dims  []string `json:"dims"`
}

// Settings are the resolved settings that decide a verdict. They are fixed when
// the run is made; gate reads them from here and nowhere else.
type Settings struct {
	Hardware   string               `json:"hardware"` // required | optional
	Tolerances map[string]Tolerance `json:"tolerances,omitempty"`
	Budgets    []Budget             `json:"budgets,omitempty"`
	Precisions []string             `json:"precisions,omitempty"`
	Target     string               `json:"target,omitempty"`
	Margin     Number               `json:"margin,omitempty"` // ratio inside which a benchmark is the same
}

// Budget is a limit on a measured quantity, absolute or relative to the baseline.
type Budget struct {
	Metric  string            `json:"metric"`             // e.g. latency_p99_ms, throughput, engine_bytes
	Where   map[string]string `json:"where,omitempty"`    // restricts rows, e.g. precision: fp16
	Max     *Number           `json:"max,omitempty"`      // absolute
	Min     *Number           `json:"min,omitempty"`      // absolute
	MaxRise *Number           `json:"max_rise,omitempty"` // fraction of the baseline
	MaxDrop *Number           `json:"max_drop,omitempty"` // fraction of the baseline
	Line    int               `json:"line,omitempty"`     // in the configuration
}

// Environment is the machine and its tools. It holds no host name, no user, no
// absolute path and no GPU UUID.
type Environment struct {
	OS    string            `json:"os"`
	CPU   string            `json:"cpu,omitempty"`
	Cores int               `json:"cores,omitempty"`
	Tools map[string]string `json:"tools"`
	GPUs  []GPU             `json:"gpus,omitempty"`
	Git   *Git              `json:"git,omitempty"`
}

// GPU is one device.
type GPU struct {
	Index             int    `json:"index"`
	Name              string `json:"name"`
	ComputeCapability string `json:"compute_capability"`
	MemoryBytes       uint64 `json:"memory_bytes,omitempty"`
	Driver            string `json:"driver,omitempty"`
	CUDA              string `json:"cuda,omitempty"`
	MIG               bool   `json:"mig,omitempty"`
}

// Git is the commit that the configuration lies in.
type Git struct {
	Commit string `json:"commit"`
	Dirty  bool   `json:"dirty"`
}

// Stage is one stage of a run.
type Stage struct {
	Name      string   `json:"name"`
	Verdict   Verdict  `json:"verdict"`
	Reason    string   `json:"reason,omitempty"` // why it did not run, or how it broke
	Hardware  bool     `json:"hardware,omitempty"`
	Cached    bool     `json:"cached"`
	Key       string   `json:"key,omitempty"`
	Changed   []string `json:"changed,omitempty"` // parts of the key that changed since the last run
	Seconds   float64  `json:"seconds"`
	Checks    []Check  `json:"checks,omitempty"`
	Artifacts []string `json:"artifacts,omitempty"` // ids
	Log       string   `json:"log,omitempty"`       // relative to the run's folder
}

// Check is one thing that was asked and what was found.
type Check struct {
	ID       string            `json:"id"` // "<stage>/<kebab-case>"
	Subject  Subject           `json:"subject"`
	Verdict  Verdict           `json:"verdict"`
	Want     string            `json:"want,omitempty"`
	Got      string            `json:"got,omitempty"`
	Metrics  map[string]Number `json:"metrics,omitempty"`
	Hardware bool              `json:"hardware,omitempty"`
	Preview  bool              `json:"preview,omitempty"` // a precision that was only approximated, e.g. fp16 on a CPU
	Seconds  float64           `json:"seconds"`
	Detail   string            `json:"detail,omitempty"`
	Hint     string            `json:"hint,omitempty"`
	Line     int               `json:"line,omitempty"` // in the configuration, for annotations
}

// Subject says what a check is about. Empty fields do not apply.
type Subject struct {
	Precision string `json:"precision,omitempty"`
	Output    string `json:"output,omitempty"`
	Point     string `json:"point,omitempty"` // min, opt, max, off-profile, inputs; with "profile N/" in front if there are several
	Node      string `json:"node,omitempty"`
	Protocol  string `json:"protocol,omitempty"` // http, grpc
}

// ArtifactSummary names an artifact of the run.
type ArtifactSummary struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Label  string `json:"label,omitempty"`
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
	Files  int    `json:"files"`
	Stage  string `json:"stage"`
}
