package github

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/gate"
	"github.com/trtship/trtship/report"
)

// Request is what the action asks the pipeline to do.
type Request struct {
	Config string
	Until  string
	Python string
	Set    []string
	// Baseline looks for the report to compare with, once what decides about that is
	// known of the run's own. The benchmark then measures in turns with what it names.
	Baseline func(ctx context.Context, head *report.Report) Base
	// Logs takes everything that the pipeline and its children print.
	Logs io.Writer
}

// Outcome is what the pipeline did.
type Outcome struct {
	Report     string         // report.json; empty if the run came to none
	Dir        string         // the run's folder
	Repository string         // the Triton model repository; empty if none was made
	Created    []string       // folders that the run wrote to (store, runs)
	Lines      map[string]int // lines of the configuration's keys, for annotations
	Sources    []string       // files that the model is made of, the most telling first
	Artifacts  []Artifact
}

// Artifact is a folder of the store that may be uploaded.
type Artifact struct {
	Kind  string // engine, calibration, repository, onnx
	Label string
	Dir   string
}

// Pipeline runs the pipeline. An error means that there may be no report; its
// exit code is then the action's.
type Pipeline func(ctx context.Context, r Request) (Outcome, error)

// Action is one run of the action.
type Action struct {
	Getenv   func(string) string
	Stdout   io.Writer // workflow commands; nothing else may write to it
	Pipeline Pipeline
	Client   *http.Client // nil is the default
	Clock    Clock
	Root     string // file system to look for a GPU in; "" is "/"
}

// RunAction runs the pipeline for the event at hand, judges it, and publishes
// what came out. It returns the exit code of the gate. What cannot be
// published is said and changes nothing.
func RunAction(ctx context.Context, a Action) (failure.Code, error) {
	s := &session{Action: a, env: ReadEnv(a.Getenv), console: NewConsole(a.Stdout), outputs: map[string]string{}}
	if s.Root == "" {
		s.Root = "/"
	}
	defer s.handBack()
	code, err := s.run(ctx)
	if err != nil {
		code = failure.CodeOf(err)
		s.refuse(code, err)
	}
	s.outputs["exit-code"] = fmt.Sprint(int(code))
	if werr := WriteOutputs(s.env.OutputPath, s.outputs); werr != nil {
		s.console.Warning("outputs were not written: %s", short(werr))
	}
	return code, err
}

// session is the state of one run of the action.
type session struct {
	Action
	env     Env
	in      Values
	event   Event
	console *Console
	outputs map[string]string
	outcome Outcome
	report  *report.Report
	gate    *report.Gate
	notes   []string

	base  *Found // nil until it was looked for
	model string // the name it was looked for by
}

func (s *session) run(ctx context.Context) (failure.Code, error) {
	in, err := ReadInputs(s.Getenv)
	if err != nil {
		return 0, failure.New(failure.Usage, "read inputs: %w", err)
	}
	s.in = in
	if s.event, err = ReadEvent(s.env); err != nil {
		return 0, failure.New(failure.Usage, "%w", err)
	}
	if why, hint := s.event.Refusal(s.env.Workspace, s.env.SHA, in["approval-label"]); why != "" {
		return 0, failure.New(failure.Usage, "refuse to run: %s", why).WithHint("%s", hint)
	}
	if err := s.runPipeline(ctx); err != nil {
		return 0, err
	}
	s.judge(ctx)
	if err := s.render(); err != nil {
		return 0, failure.New(failure.Artifact, "write renderings: %w", err)
	}
	s.publish(ctx)
	return failure.Code(s.gate.ExitCode), nil
}

func (s *session) runPipeline(ctx context.Context) error {
	set := s.in.Lines("set")
	if h := s.in["hardware"]; h != "" {
		set = append(set, "gate.hardware="+h)
	}
	end := s.console.Group("trtship run " + s.in["config"])
	resume, err := s.console.Quiet()
	if err != nil {
		return err
	}
	config := s.in["config"]
	if !filepath.IsAbs(config) {
		config = filepath.Join(s.env.Workspace, config)
	}
	s.outcome, err = s.Pipeline(ctx, Request{
		Config: config, Until: s.in["until"], Python: s.in["python"], Set: set, Logs: s.Stdout, Baseline: s.findBaseline,
	})
	resume()
	end()
	if ctx.Err() != nil {
		return failure.New(failure.Terminated, "stopped before the run was judged: %w", errors.Join(context.Cause(ctx), err))
	}
	if s.outcome.Report == "" {
		if err == nil {
			err = failure.New(failure.Bug, "the pipeline left no report and no reason")
		}
		return err
	}
	// A run that ended badly has said so in its report, which is judged.
	r, rerr := report.Read(s.outcome.Report)
	if rerr != nil {
		return failure.New(failure.Artifact, "%w", rerr)
	}
	s.report = r
	return nil
}

// key tells the comments and artifacts of one workflow apart.
func (s *session) key() string {
	if k := s.in["key"]; k != "" {
		return CleanKey(k)
	}
	name := "model"
	if s.report != nil {
		name = s.report.Model.Name
	} else if s.model != "" {
		name = s.model
	}
	if s.env.Job != "" {
		name += "/" + s.env.Job
	}
	return CleanKey(name)
}

func (s *session) judge(ctx context.Context) {
	o := gate.Options{Until: s.in["until"], AllowVanished: s.in.Lines("allow-vanished")}
	o.Checks = gate.ReadJUnit(absolute(s.env.Workspace, s.in.Lines("junit")), s.in.Lines("allow-skipped"))
	for i := range o.Checks {
		o.Checks[i].Subject.Node = s.env.relative(o.Checks[i].Subject.Node)
	}
	if s.base == nil {
		s.findBaseline(ctx, s.report)
	}
	o.Source, o.BaselineCommit = s.base.Source, s.base.Commit
	// A baseline that was named is wanted; one that was looked for may be absent.
	o.RequireBaseline = s.in.Bool("require-baseline") || s.in["baseline"] != "auto" && s.in["baseline"] != "none"
	if s.event.Fork {
		s.notes = append(s.notes, "The code is from a fork: "+orGone(s.event.HeadRepo)+".")
	}
	o.Notes = s.notes
	s.gate = gate.Judge(s.report, s.base.Report, o)
	for _, r := range s.gate.Reasons {
		if r.Verdict == report.Missing && s.hardware(r.Check) {
			if remedy := GPURemedy(s.Root); remedy != "" {
				s.gate.Notes = append(s.gate.Notes, "No GPU was seen here: "+remedy+".")
				break
			}
		}
	}
}

func (s *session) hardware(check string) bool {
	name, _, _ := strings.Cut(check, "/")
	for _, st := range s.report.Stages {
		if st.Name == name {
			return st.Hardware
		}
	}
	return false
}

func absolute(root string, paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = p
		if !filepath.IsAbs(p) {
			out[i] = filepath.Join(root, p)
		}
	}
	return out
}

func orGone(repo string) string {
	if repo == "" {
		return "a repository that is gone"
	}
	return repo
}

// findBaseline finds the report to compare head with, and keeps it. Every outcome
// is said. It is asked once: before the run, else after it.
func (s *session) findBaseline(ctx context.Context, head *report.Report) Base {
	s.model = head.Model.Name
	found := s.baseline(ctx, head)
	s.base = &found
	b := Base{Report: found.Report, Dir: found.Dir}
	if found.Run != 0 {
		b.Fetch = s.fetch
	}
	return b
}

// fetch brings what the baseline's run uploaded of a kind.
func (s *session) fetch(ctx context.Context, kind, dir string) error {
	api, err := NewAPI(s.env, s.Client, s.Clock)
	if err != nil {
		return err
	}
	return api.Fetch(ctx, s.base.Run, ArtifactName(s.key(), kind), dir)
}

func (s *session) baseline(ctx context.Context, head *report.Report) Found {
	switch b := s.in["baseline"]; b {
	case "none":
		return Found{}
	case "auto":
		return s.lookUp(ctx, head)
	default:
		path := absolute(s.env.Workspace, []string{b})[0]
		r, err := report.Read(path)
		if err != nil {
			s.notes = append(s.notes, "The baseline could not be read: "+short(err)+".")
			return Found{}
		}
		return Found{Report: r, Source: "file", Dir: filepath.Dir(path)}
	}
}

func (s *session) lookUp(ctx context.Context, head *report.Report) Found {
	api, err := NewAPI(s.env, s.Client, s.Clock)
	if err != nil {
		s.notes = append(s.notes, "No baseline was looked for: "+short(err)+".")
		return Found{}
	}
	found, err := api.Baseline(ctx, s.event, ArtifactName(s.key(), "report"), s.in.Int("baseline-depth"), s.env.RunID, head)
	if err != nil {
		s.notes = append(s.notes, "The baseline could not be looked up: "+explain(err, "{actions: read, contents: read}", false)+".")
		return Found{}
	}
	for i, w := range found.Why {
		if i == 3 {
			s.notes = append(s.notes, fmt.Sprintf("%d more runs are not used as a baseline.", len(found.Why)-i))
			break
		}
		s.notes = append(s.notes, "Baseline: "+w+".")
	}
	return found
}

// view is what every rendering of this run shows.
func (s *session) view() report.View {
	v := report.View{Report: s.report, Gate: s.gate, Baseline: s.base.Report, Links: report.Links{Run: s.env.RunURL(), Commit: s.event.HeadSHA}}
	if v.Links.Run != "" {
		v.Links.Report = v.Links.Run + "#artifacts"
	}
	return v
}

// render writes gate.json and the renderings beside the run's report.
func (s *session) render() error {
	dir := filepath.Join(s.outcome.Dir, "reports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := Renderings(s.view())
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := report.WriteFile(filepath.Join(dir, f.Name), f.Data); err != nil {
			return err
		}
	}
	return nil
}

// Rendering is a file made from a report.
type Rendering struct {
	Name string
	Data []byte
}

// Renderings makes every file that a view is published as.
func Renderings(v report.View) ([]Rendering, error) {
	junit, err := report.JUnit(v)
	if err != nil {
		return nil, err
	}
	files := []Rendering{
		{"report.md", []byte(report.Markdown(v, report.MarkdownOptions{}))},
		{"report.html", report.HTML(v)},
		{"junit.xml", junit},
	}
	if v.Gate != nil {
		b, err := report.Encode(v.Gate)
		if err != nil {
			return nil, err
		}
		files = append(files, Rendering{"gate.json", b})
	}
	return files, nil
}

// refuse tells people why there is no result.
func (s *session) refuse(code failure.Code, err error) {
	s.outputs["verdict"] = string(report.Broken)
	var places []Annotation
	a := Annotation{Level: "error", Title: "trtship " + code.String(), Text: err.Error()}
	if f, ok := errors.AsType[*failure.Error](err); ok {
		a.Text = f.Message
		if f.Hint != "" {
			a.Text += "\nhint: " + f.Hint
		}
		a.File, a.Line = s.place(f.Where)
		for _, d := range f.Details {
			a.Text += "\n" + d.Label + ": " + d.Value
			// Mistakes of a configuration are details with a place of their own.
			if file, line := s.place(d.Label); line > 0 && a.File == "" {
				places = append(places, Annotation{Level: a.Level, Title: a.Title, Text: d.Value, File: file, Line: line})
			}
		}
	}
	if len(places) > 0 {
		s.console.Annotate(places)
	} else {
		s.console.Annotate([]Annotation{a})
	}
	text := "### ❌ trtship: no result (exit " + fmt.Sprint(int(code)) + ")\n\n" + fence(a.Text) + "\n"
	if werr := WriteSummary(s.env.SummaryPath, func(limit int) string { return clip(text, limit) }); werr != nil {
		s.console.Warning("the summary was not written: %s", short(werr))
	}
}

// place reads "file:line:column".
func (s *session) place(where string) (file string, line int) {
	parts := strings.SplitN(where, ":", 3)
	if parts[0] == "" {
		return "", 0
	}
	if len(parts) > 1 {
		_, _ = fmt.Sscanf(parts[1], "%d", &line)
	}
	return s.env.relative(parts[0]), line
}

// fence puts text into a fenced block that it cannot leave.
func fence(text string) string {
	f := "```"
	for strings.Contains(text, f) {
		f += "`"
	}
	return f + "text\n" + plain(text) + "\n" + f
}

func (s *session) handBack() {
	dirs := s.outcome.Created
	if s.outcome.Dir != "" {
		dirs = append(dirs, s.outcome.Dir)
	}
	if err := HandBack(s.env.Workspace, dirs...); err != nil {
		s.console.Warning("some files still belong to the container's user: %s", short(err))
	}
}
