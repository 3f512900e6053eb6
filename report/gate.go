package report

// GateFormat is the tag of gate.json.
const GateFormat = "trtship-gate/1"

// Gate is the judgement of one report, against a baseline if there is one. It
// is made by internal/gate from files alone and is what the renderings show
// beside the report.
type Gate struct {
	Format   string    `json:"format"`
	Verdict  Verdict   `json:"verdict"`
	ExitCode int       `json:"exit_code"`
	Hardware string    `json:"hardware"`           // required | optional
	Reasons  []Reason  `json:"reasons,omitempty"`  // what stands in the way, in stage order; the first one decides the exit code
	Baseline *Baseline `json:"baseline,omitempty"` // nil: none was given
	Deltas   []Delta   `json:"deltas,omitempty"`   // worst first
	Checks   []Check   `json:"checks,omitempty"`   // the gate's own: budgets, vanished rows, deltas, JUnit files
	Notes    []string  `json:"notes,omitempty"`    // said, but not in the way
}

// Reason is one check that does not let the change through.
type Reason struct {
	Check    string  `json:"check"`
	Subject  Subject `json:"subject"`
	Verdict  Verdict `json:"verdict"`
	ExitCode int     `json:"exit_code"`
	Text     string  `json:"text"`
	Hint     string  `json:"hint,omitempty"`
	Line     int     `json:"line,omitempty"` // in the configuration
}

// Baseline says what a report was compared with, or why it was not.
type Baseline struct {
	RunID       string   `json:"run_id,omitempty"`
	Commit      string   `json:"commit,omitempty"`
	Source      string   `json:"source"` // how it was found: "file", "merge base", "parent 2 of the merge base", "none"
	Comparable  bool     `json:"comparable"`
	Differences []string `json:"differences,omitempty"` // why speeds are not compared, e.g. "GPU: NVIDIA A100 then, NVIDIA H200 now"
}

// Change is the outcome of one comparison with the baseline.
type Change string

// The changes. A change is certain only when the whole confidence interval of
// the ratio lies on one side of the margin.
const (
	Regressed    Change = "regressed"
	Improved     Change = "improved"
	Same         Change = "same"
	Unclear      Change = "inconclusive"
	Vanished     Change = "vanished" // in the baseline, not in this report
	New          Change = "new"      // in this report, not in the baseline
	Incomparable Change = "not-compared"
)

// Changes lists all changes, worst first.
var Changes = []Change{Vanished, Regressed, Unclear, Incomparable, New, Improved, Same}

// Delta is one quantity of one row, then and now.
type Delta struct {
	Row        string  `json:"row"`    // e.g. "tensorrt fp16 batch 8 concurrency 1 cuda-graph"
	Metric     string  `json:"metric"` // e.g. latency_p50_ms
	Unit       string  `json:"unit,omitempty"`
	Better     string  `json:"better"` // lower | higher
	Base       *Number `json:"base"`
	Head       *Number `json:"head"`
	Ratio      *Number `json:"ratio,omitempty"` // head / base
	Low        *Number `json:"low,omitempty"`   // confidence interval of Ratio
	High       *Number `json:"high,omitempty"`
	Confidence Number  `json:"confidence,omitempty"`
	Margin     Number  `json:"margin,omitempty"`
	Change     Change  `json:"change"`
	Detail     string  `json:"detail,omitempty"`
}

// View is what a rendering shows: a report, and what is known beside it. All
// fields but Report may be empty.
type View struct {
	Report   *Report
	Gate     *Gate
	Baseline *Report // raw samples of the baseline, for plots
	Links    Links
}

// Links point from a rendering to the world. They are written as they are, so
// they must come from the program and never from a model or a pull request.
type Links struct {
	Run    string // the workflow run
	Report string // the full report (an artifact)
	Commit string // sha that was judged: the head of a pull request, not its merge commit
}

// verdict returns the gate's verdict where there is one, and the report's otherwise.
func (v View) verdict() Verdict {
	if v.Gate != nil {
		return v.Gate.Verdict
	}
	return v.Report.Verdict
}

func (v View) exitCode() int {
	if v.Gate != nil {
		return v.Gate.ExitCode
	}
	return v.Report.ExitCode
}
