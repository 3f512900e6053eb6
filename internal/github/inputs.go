package github

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Image is what action.yml runs unless a release names a published image.
const Image = "Dockerfile"

// Input is one input of the action. The table Inputs writes action.yml and the
// documentation, and reads the environment.
type Input struct {
	Name        string
	Description string
	Default     string
	Kind        string // text, lines (one value a line), bool, number
}

// Inputs are the inputs of the action.
var Inputs = []Input{
	{"config", "Configuration file, relative to the workspace.", "trtship.yaml", "text"},
	{"until", "Last stage to run. A hardware stage that this cuts off is not held against the change.", "", "text"},
	{"set", "Settings that override the file, one key=value a line.", "", "lines"},
	{"python", "Python interpreter for the model's code. The locked environment by default.", "", "text"},
	{"hardware", "Whether hardware stages that did not run fail the gate: required, optional, or empty for what the configuration says.", "", "text"},
	{"baseline", "What to compare with: auto (the merge base's run), none, or a report.json in the workspace.", "auto", "text"},
	{"require-baseline", "Fail when there is no baseline that may be compared.", "false", "bool"},
	{"baseline-depth", "How many first parents of the merge base are searched for a baseline.", "30", "number"},
	{"allow-vanished", "Rows of the baseline that may be gone, one pattern a line.", "", "lines"},
	{"junit", "JUnit files of other tools in which every test must have run and passed, one pattern a line.", "", "lines"},
	{"allow-skipped", "Tests in those files that may be skipped, one pattern a line.", "", "lines"},
	{"comment", "Post the result to the pull request.", "true", "bool"},
	{"comment-author", "Login under which the token writes comments.", "github-actions[bot]", "text"},
	{"key", "Tells comments and artifacts of one workflow apart. The model and the job by default; add the matrix's values.", "", "text"},
	{"upload", "Kinds of artifacts to upload, one a line: report, engine, calibration, repository, onnx; none for nothing.", "report\nengine\ncalibration", "lines"},
	{"retention-days", "Days that artifacts are kept; 0 is the repository's setting.", "0", "number"},
	{"approval-label", "Run the code of a fork's pull request only when this label has just been added to it. For self-hosted runners.", "", "text"},
	{"token", "Token for comments and for finding the baseline.", "${{ github.token }}", "text"},
}

// Output is one output of the action.
type Output struct {
	Name        string
	Description string
}

// Outputs are the outputs of the action.
var Outputs = []Output{
	{"verdict", "pass, fail, missing, broken or inconclusive."},
	{"exit-code", "Exit code of the gate; 0 lets the change through."},
	{"run-id", "Id of the run."},
	{"report", "Path of report.json, relative to the workspace."},
	{"html", "Path of the page for people, relative to the workspace."},
	{"junit", "Path of the JUnit file, relative to the workspace."},
	{"repository", "Path of the Triton model repository, relative to the workspace; empty if none was made."},
	{"baseline", "Run id of the baseline; empty if there was none."},
	{"comment-url", "Address of the comment; empty if none was posted."},
}

// WriteActionYML writes action.yml.
func WriteActionYML(w io.Writer, image string) error {
	var b strings.Builder
	b.WriteString("# Generated from the table of inputs in internal/github; do not edit.\n" +
		"name: trtship\n" +
		"description: Takes a model through export, validation, TensorRT and Triton, and lets a change through only when every check ran and held.\n" +
		"author: trtship\n" +
		"branding: {icon: check-square, color: green}\n" +
		"inputs:\n")
	for _, in := range Inputs {
		fmt.Fprintf(&b, "  %s:\n    description: %s\n    required: false\n    default: %s\n", in.Name, quote(in.Description), quote(in.Default))
	}
	b.WriteString("outputs:\n")
	for _, out := range Outputs {
		fmt.Fprintf(&b, "  %s:\n    description: %s\n", out.Name, quote(out.Description))
	}
	fmt.Fprintf(&b, "runs:\n  using: docker\n  image: %s\n  args: [action]\n", image)
	_, err := io.WriteString(w, b.String())
	return err
}

func quote(s string) string { return strconv.Quote(s) }

// WriteInputTable writes the inputs and outputs as Markdown tables.
func WriteInputTable(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| Input | Default | What it does |\n| --- | --- | --- |\n")
	for _, in := range Inputs {
		def := strings.ReplaceAll(in.Default, "\n", ", ")
		if def != "" {
			def = "`" + def + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", in.Name, def, in.Description)
	}
	b.WriteString("\n| Output | What it is |\n| --- | --- |\n")
	for _, out := range Outputs {
		fmt.Fprintf(&b, "| `%s` | %s |\n", out.Name, out.Description)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Values are the inputs of one run, defaults filled in.
type Values map[string]string

// ReadInputs reads INPUT_* of the environment: upper case, blanks as _, hyphens
// kept. Every mistake is reported at once.
func ReadInputs(getenv func(string) string) (Values, error) {
	v := Values{}
	var problems []error
	for _, in := range Inputs {
		s := strings.TrimSpace(getenv(envName(in.Name)))
		if s == "" && !strings.HasPrefix(in.Default, "${{") {
			s = in.Default
		}
		switch in.Kind {
		case "bool":
			if s != "true" && s != "false" {
				problems = append(problems, fmt.Errorf("input %s is %q, want true or false", in.Name, s))
			}
		case "number":
			if n, err := strconv.Atoi(s); err != nil || n < 0 {
				problems = append(problems, fmt.Errorf("input %s is %q, want a whole number, at least 0", in.Name, s))
			}
		}
		v[in.Name] = s
	}
	if h := v["hardware"]; h != "" && h != "required" && h != "optional" {
		problems = append(problems, fmt.Errorf("input hardware is %q, want required, optional or nothing", h))
	}
	for _, kind := range v.Lines("upload") {
		if !slices.Contains([]string{"report", "engine", "calibration", "repository", "onnx", "none"}, kind) {
			problems = append(problems, fmt.Errorf("input upload names %q, want report, engine, calibration, repository, onnx or none", kind))
		}
	}
	return v, errors.Join(problems...)
}

func envName(input string) string {
	return "INPUT_" + strings.ToUpper(strings.ReplaceAll(input, " ", "_"))
}

// Bool returns a bool input.
func (v Values) Bool(name string) bool { return v[name] == "true" }

// Int returns a number input.
func (v Values) Int(name string) int {
	n, _ := strconv.Atoi(v[name]) // checked by ReadInputs
	return n
}

// Lines returns the values of an input that holds one a line.
func (v Values) Lines(name string) []string {
	var out []string
	for _, l := range strings.Split(v[name], "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}
