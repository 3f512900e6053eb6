// Package lint judges Triton model repositories, ours or anybody's: the text of
// config.pbtxt, the layout of folders, what the server's core demands, and what
// the native backends demand of the model files themselves.
package lint

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // does not load, or does not do what is written
	Warning Severity = "warning" // loads, and is probably not what was meant
	Note    Severity = "note"    // worth knowing
)

// Finding is one mistake at its place.
type Finding struct {
	Rule     string    `json:"rule"`
	Severity Severity  `json:"severity"`
	Decider  Decider   `json:"decider"`
	Model    string    `json:"model,omitempty"`
	File     string    `json:"file"` // relative to what was linted, slash-separated
	Pos      pbtxt.Pos `json:"position,omitzero"`
	Text     string    `json:"text"`
	Hint     string    `json:"hint,omitempty"`
}

// Place returns file:line:column, or the file alone.
func (f Finding) Place() string {
	if f.Pos.Line == 0 {
		return f.File
	}
	return f.File + ":" + f.Pos.String()
}

// String returns one line: place, severity, text, hint and rule.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: %s: %s", f.Place(), f.Severity, f.Text)
	if f.Hint != "" {
		s += " (" + f.Hint + ")"
	}
	return s + " [" + f.Rule + "]"
}

// Options say what is known about the server that the repository is for.
type Options struct {
	GPUs     *int   // GPUs that the server sees; nil: not known
	TensorRT string // release of the server's TensorRT; empty: not known
}

// Dir lints a repository, or one model's folder.
func Dir(ctx context.Context, path string, o Options) ([]Finding, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "lint: %w", err)
	}
	if !info.IsDir() {
		return File(path, o)
	}
	l := &linter{o: o, root: path, models: map[string]*model{}}
	if isModel(path) {
		l.root = filepath.Dir(path)
		if err := l.read(filepath.Base(path)); err != nil {
			return nil, err
		}
		l.siblings(filepath.Base(path))
	} else if err := l.readAll(); err != nil {
		return nil, err
	}
	for _, m := range l.models {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !m.context {
			l.judge(m)
		}
	}
	return l.sorted(), nil
}

// File lints one configuration without its folder.
func File(path string, o Options) ([]Finding, error) {
	text, err := regular.ReadFile(path)
	if err != nil {
		return nil, failure.New(failure.Artifact, "lint: %w", err)
	}
	l := &linter{o: o, root: filepath.Dir(path), models: map[string]*model{}}
	m := &model{name: "", file: filepath.Base(path), alone: true}
	m.doc = pbtxt.Parse(string(text))
	m.config = m.doc.Config
	l.text(m)
	l.core(m)
	return l.sorted(), nil
}

// LoadsInCore reports whether nothing was found that Triton's core refuses for
// a model.
func LoadsInCore(found []Finding, model string) bool {
	return !slices.ContainsFunc(found, func(f Finding) bool {
		return f.Model == model && f.Severity == Error && f.Decider == Core
	})
}

// Worst returns the number of errors and of warnings.
func Worst(found []Finding) (errors, warnings int) {
	for _, f := range found {
		switch f.Severity {
		case Error:
			errors++
		case Warning:
			warnings++
		case Note:
		}
	}
	return errors, warnings
}

// isModel tells a model's folder from a repository: it has a configuration, or
// a version folder that holds a model file.
func isModel(path string) bool {
	if _, err := os.Stat(filepath.Join(path, "config.pbtxt")); err == nil {
		return true
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			return true
		}
		if !e.IsDir() && modelFile(e.Name()) {
			return true
		}
	}
	return false
}

// modelFile reports whether a name is that of a model file.
func modelFile(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".onnx", ".plan", ".engine", ".pt", ".pth", ".pt2", ".graphdef", ".savedmodel":
		return true
	}
	return name == "model.py"
}

type linter struct {
	o      Options
	root   string
	models map[string]*model
	found  []Finding
}

// model is one folder of a repository.
type model struct {
	name    string // of the folder
	dir     string
	file    string // config.pbtxt, relative to the root
	doc     *pbtxt.Document
	config  *tritonpb.ModelConfig
	missing bool // there is no config.pbtxt
	// ignored: the configuration lies in a version folder, where the server does
	// not read it. It is judged all the same, for it will be moved up.
	ignored bool
	alone   bool // a configuration without its folder
	context bool // only read for what others say about it
	folders []folder
	served  []folder // what the version policy loads
	backend string   // with what the server fills in
	format  string   // platform with what the server fills in
}

// folder is a sub-folder that Triton takes for a version, or that may be meant
// as one.
type folder struct {
	name    string
	version int64
	ok      bool // Triton takes it
}

func (l *linter) add(rule string, m *model, path string, text, hint string) {
	f := Finding{Rule: rule, Model: m.name, File: m.file, Text: text, Hint: hint}
	if m.doc != nil && !m.missing {
		f.Pos = m.doc.At(path)
	}
	l.put(f)
}

// addAt is add for a file or folder other than the configuration.
func (l *linter) addAt(rule string, m *model, file, text, hint string) {
	l.put(Finding{Rule: rule, Model: m.name, File: filepath.ToSlash(filepath.Join(m.name, file)), Text: text, Hint: hint})
}

func (l *linter) put(f Finding) {
	r, ok := RuleOf(f.Rule)
	if !ok {
		panic("lint: no rule " + f.Rule) // a programmer's mistake
	}
	f.Decider, f.Severity = r.Decider, cmp.Or(f.Severity, r.Severity)
	if m := l.models[f.Model]; m != nil && m.ignored && f.File == m.file {
		f.Decider = Ours // the server does not read it
	}
	l.found = append(l.found, f)
}

func (l *linter) sorted() []Finding {
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column), cmp.Compare(a.Rule, b.Rule))
	})
	return few(l.found)
}

// most is how often one rule is shown of one file.
const most = 50

// few keeps the first findings of each rule in each file, and says in the last
// of them how many more there are: a file can hold a mistake a million times.
func few(found []Finding) []Finding {
	type key struct{ file, rule string }
	all, seen, last := map[key]int{}, map[key]int{}, map[key]int{}
	for _, f := range found {
		all[key{f.File, f.Rule}]++
	}
	out := make([]Finding, 0, min(len(found), most))
	for _, f := range found {
		k := key{f.File, f.Rule}
		if seen[k]++; seen[k] <= most {
			last[k] = len(out)
			out = append(out, f)
		}
	}
	for k, n := range all {
		if n > most {
			out[last[k]].Text += fmt.Sprintf("; and %d more of this kind in this file", n-most)
		}
	}
	return out
}

// readAll reads every folder of a repository; files and hidden folders are none
// of Triton's business.
func (l *linter) readAll() error {
	entries, err := os.ReadDir(l.root)
	if err != nil {
		return failure.New(failure.Artifact, "lint: %w", err)
	}
	for _, e := range entries {
		if !isDir(l.root, e) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if err := l.read(e.Name()); err != nil {
			return err
		}
	}
	if len(l.models) == 0 {
		l.put(Finding{Rule: "layout/empty", File: ".", Text: "there is no model in this folder"})
	}
	return nil
}

// inVersion looks for a configuration in a version folder and makes it the
// model's.
func (m *model) inVersion(entries []os.DirEntry) []byte {
	for _, e := range entries {
		text, err := regular.ReadFile(filepath.Join(m.dir, e.Name(), "config.pbtxt"))
		if err == nil && versionOf(e.Name()).ok {
			m.ignored, m.file = true, m.name+"/"+e.Name()+"/config.pbtxt"
			return text
		}
	}
	return nil
}

// isDir follows links, as Triton does.
func isDir(dir string, e os.DirEntry) bool {
	if e.IsDir() {
		return true
	}
	info, err := os.Stat(filepath.Join(dir, e.Name()))
	return err == nil && info.IsDir()
}

// siblings reads the other models for ensembles, without judging them.
func (l *linter) siblings(judged string) {
	m := l.models[judged]
	for _, step := range m.config.GetEnsembleScheduling().GetStep() {
		name := step.GetModelName()
		if l.models[name] != nil || name != filepath.Base(name) {
			continue
		}
		if err := l.read(name); err == nil {
			l.models[name].context = true
		}
	}
}

// read reads the configuration and the folders of a model.
func (l *linter) read(name string) error {
	dir := filepath.Join(l.root, name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return failure.New(failure.Artifact, "lint: %w", err)
	}
	m := &model{name: name, dir: dir, file: name + "/config.pbtxt"}
	text, err := regular.ReadFile(filepath.Join(dir, "config.pbtxt"))
	switch {
	case os.IsNotExist(err):
		if text = m.inVersion(entries); text == nil {
			m.missing = true
		}
	case err != nil:
		return failure.New(failure.Artifact, "lint: %w", err)
	}
	m.doc = pbtxt.Parse(string(text))
	m.config = m.doc.Config
	for _, e := range entries {
		if isDir(dir, e) {
			m.folders = append(m.folders, versionOf(e.Name()))
		}
	}
	l.models[name] = m
	m.complete()
	return nil
}

// versionOf reads a folder's name as Triton does: a leading zero is ignored,
// and of the rest the digits in front count, whatever follows them.
func versionOf(name string) folder {
	f := folder{name: name}
	if len(name) > 1 && name[0] == '0' {
		return f
	}
	digits := strings.TrimLeft(name, " ")
	n := 0
	for n < len(digits) && (digits[n] >= '0' && digits[n] <= '9' || n == 0 && strings.ContainsAny(digits[:1], "+-")) {
		n++
	}
	v, err := strconv.ParseInt(digits[:n], 10, 64)
	f.version, f.ok = v, err == nil
	return f
}

// judge runs all rules on a model.
func (l *linter) judge(m *model) {
	l.text(m)
	l.layout(m)
	l.core(m)
	if m.config.GetEnsembleScheduling() == nil {
		l.native(m)
	}
}
