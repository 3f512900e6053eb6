package failure

// Code is an exit code of the process.
type Code int

// The exit codes. Codes documents each of them.
const (
	OK          Code = 0
	Usage       Code = 2
	Missing     Code = 3
	Model       Code = 4
	Export      Code = 5
	Tolerance   Code = 6
	Build       Code = 7
	Calibration Code = 8
	Benchmark   Code = 9
	Triton      Code = 10
	Artifact    Code = 11
	Regression  Code = 12
	Incomplete  Code = 13
	Bug         Code = 70
	Interrupted Code = 130
	Terminated  Code = 143
)

// CodeDoc describes one exit code.
type CodeDoc struct {
	Code    Code
	Name    string // short name, stable, used in --json
	Meaning string // one sentence
	Remedy  string // what to do
}

// Codes is the table of exit codes. docs/exit-codes.md and the help are
// written from it.
var Codes = []CodeDoc{
	{OK, "ok", "Everything that was asked for ran and held.", "Nothing."},
	{Usage, "usage", "The command line or the configuration is wrong.", "Mend the lines that the error lists; all of them are listed at once."},
	{Missing, "missing", "A capability that was asked for is not available here (GPU, TensorRT, torch, ONNX Runtime, Triton, Docker), or the store lacks what a stage outside of `--from` or `--only` makes.", "Run `trtship doctor`, or stop earlier with the `--until`, or begin earlier with the `--from`, that the error names."},
	{Model, "model", "The model could not be loaded or read.", "Check the factory, the weights and the ONNX file that the error names."},
	{Export, "export", "The ONNX export failed, or its inputs and outputs are not the declared ones.", "Compare the two lists in the error, or try the other exporter (`export.dynamo`)."},
	{Tolerance, "tolerance", "Outputs differ by more than the tolerance, or are no evidence.", "Read output, point and metric in the report before loosening a tolerance."},
	{Build, "build", "A TensorRT engine could not be built.", "Read the list of unsupported operators or the last lines of the builder."},
	{Calibration, "calibration", "Calibration data or a calibration cache is missing, unusable or does not match.", "Mend every mismatch that the error lists, or recalibrate."},
	{Benchmark, "benchmark", "A benchmark could not be run.", "Read the cause; a slow result is not this code."},
	{Triton, "triton", "The Triton repository, server or client failed.", "Read the server's own words in the error and its log."},
	{Artifact, "artifact", "A file or an artifact is missing, damaged, unwritable or already there.", "Run `trtship artifacts verify`; choose another output path."},
	{Regression, "regression", "The gate found a budget that is exceeded or a regression against the baseline.", "Read the deltas in the report."},
	{Incomplete, "incomplete", "The gate lacks evidence: a step that was asked for did not run, or a measurement is inconclusive.", "Run the missing step, or measure longer."},
	{Bug, "bug", "An unexpected error: a bug in trtship. A trace is printed.", "Report it with `trtship doctor --json`."},
	{Interrupted, "interrupted", "Stopped by SIGINT.", "Run again; finished stages are reused."},
	{Terminated, "terminated", "Stopped by SIGTERM.", "Run again; finished stages are reused."},
}

// Doc returns the table's row for c; ok is false for an unknown code.
func (c Code) Doc() (doc CodeDoc, ok bool) {
	for _, d := range Codes {
		if d.Code == c {
			return d, true
		}
	}
	return CodeDoc{}, false
}

func (c Code) String() string {
	if d, ok := c.Doc(); ok {
		return d.Name
	}
	return "unknown"
}
