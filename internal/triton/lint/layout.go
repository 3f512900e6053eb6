package lint

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/regular"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// text reports what reading the configuration found.
func (l *linter) text(m *model) {
	for _, p := range m.doc.Problems {
		l.put(Finding{Rule: "text/" + p.Kind, Model: m.name, File: m.file, Pos: p.Pos, Text: p.Text, Hint: p.Hint})
	}
}

// notVersions are folders beside versions that Triton or people use.
var notVersions = []string{"warmup", "initial_state_dir", "initial_state", "configs", "__pycache__"}

// layout judges folders and files.
func (l *linter) layout(m *model) {
	l.versions(m)
	if n := m.config.GetName(); n != "" && n != m.name {
		l.add("layout/directory-name", m, "name", fmt.Sprintf("the model is called %q, its folder %q", n, m.name), "they must be equal, also in upper and lower case")
	}
	for _, f := range m.folders {
		path := filepath.Join(f.name, "config.pbtxt")
		if _, err := os.Stat(filepath.Join(m.dir, path)); err == nil {
			l.addAt("layout/config-in-version", m, path, "config.pbtxt lies in the version folder and is not read", "move it up into "+m.name+"/")
		}
	}
	if m.missing {
		l.addAt("layout/no-config", m, "", "there is no config.pbtxt: name, types, shapes and batching are guessed from the model file", "write one; trtship package makes it from the model")
	}
	if !m.missing && m.config.GetBackend() == "" && m.config.GetPlatform() == "" && m.backend != "" && !m.doc.Fatal() {
		l.add("layout/backend-guess", m, "", fmt.Sprintf("neither backend nor platform is given: %s is guessed from the file's name", m.backend), fmt.Sprintf("write backend: %q", m.backend))
	}
	l.labels(m)
}

// versions judges the version folders and finds what the policy serves.
func (l *linter) versions(m *model) {
	var ok []folder
	var ignored []Finding
	for _, f := range m.folders {
		switch {
		case f.ok && strconv.FormatInt(f.version, 10) == f.name:
			ok = append(ok, f)
		case f.ok:
			l.addAt("layout/version-suffix", m, f.name, fmt.Sprintf("the folder %q is read as version %d, and the folder %d is then looked for", f.name, f.version, f.version), "rename it so that it does not start with a digit, or move it out")
		case strings.HasPrefix(f.name, "0") && allDigits(f.name):
			ignored = append(ignored, Finding{Rule: "layout/leading-zero", Text: fmt.Sprintf("the version folder %q is ignored: it starts with a zero", f.name), Hint: "rename it to " + strings.TrimLeft(f.name, "0"), File: f.name})
		case l.holdsModel(m, f.name):
			ignored = append(ignored, Finding{Rule: "layout/version-name", Text: fmt.Sprintf("the folder %q holds a model, but its name is no number: it is ignored", f.name), Hint: "give it a number; the newest is the highest", File: f.name})
		}
	}
	suffixed := slices.ContainsFunc(m.folders, func(f folder) bool { return f.ok && strconv.FormatInt(f.version, 10) != f.name })
	m.served = serve(m.config.GetVersionPolicy(), ok)
	for _, f := range ignored {
		f.Model, f.File = m.name, m.name+"/"+f.File
		if len(ok) == 0 && !suffixed {
			f.Severity = Error // nothing is left to load
			f.Text += "; no version is left"
		}
		l.put(f)
	}
	switch {
	case len(ok) == 0 && len(ignored) == 0 && !suffixed && m.config.GetEnsembleScheduling() == nil:
		l.noVersion(m)
	case len(ok) == 0 && len(ignored) == 0 && !suffixed:
		l.addAt("layout/no-version", m, "", "there is no version folder; an ensemble needs one too, though it is empty", "make the folder 1")
	default:
		l.policy(m, ok)
	}
}

func (l *linter) noVersion(m *model) {
	text, hint := "there is no version folder", "make the folder 1 and put the model file into it"
	entries, _ := os.ReadDir(m.dir)
	for _, e := range entries {
		if !e.IsDir() && modelFile(e.Name()) {
			text += fmt.Sprintf("; %s lies beside config.pbtxt", e.Name())
			hint = "move it to 1/" + e.Name()
			break
		}
	}
	l.addAt("layout/no-version", m, "", text, hint)
}

func allDigits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// holdsModel reports whether a folder that is no version may be meant as one.
func (l *linter) holdsModel(m *model, name string) bool {
	if slices.Contains(notVersions, name) || strings.HasPrefix(name, ".") {
		return false
	}
	entries, err := os.ReadDir(filepath.Join(m.dir, name))
	return err == nil && slices.ContainsFunc(entries, func(e os.DirEntry) bool { return modelFile(e.Name()) })
}

// serve returns the versions that a policy loads, newest first.
func serve(p *tritonpb.ModelVersionPolicy, have []folder) []folder {
	have = slices.Clone(have)
	slices.SortFunc(have, func(a, b folder) int { return int(b.version - a.version) })
	switch {
	case p.GetAll() != nil:
		return have
	case p.GetSpecific() != nil:
		return slices.DeleteFunc(have, func(f folder) bool { return !slices.Contains(p.GetSpecific().GetVersions(), f.version) })
	}
	n := 1
	if p.GetLatest() != nil {
		n = int(p.GetLatest().GetNumVersions())
	}
	return have[:min(n, len(have))]
}

func (l *linter) policy(m *model, have []folder) {
	specific := m.config.GetVersionPolicy().GetSpecific()
	absent := 0
	for i, v := range specific.GetVersions() {
		if !slices.ContainsFunc(have, func(f folder) bool { return f.version == v }) {
			absent++
			l.add("policy/absent", m, fmt.Sprintf("version_policy.specific.versions[%d]", i), fmt.Sprintf("version %d is asked for and is not there; the server loads the others without failing", v), "add the folder, or take it from the list")
		}
	}
	if len(have) > 0 && len(m.served) == 0 && (specific == nil || absent == len(specific.GetVersions())) {
		l.add("policy/none", m, "version_policy", "no version is left under the version policy", "write latest { num_versions: 1 }")
	}
}

// labels judges the label files of outputs.
func (l *linter) labels(m *model) {
	for i, o := range m.config.GetOutput() {
		name := o.GetLabelFilename()
		if name == "" {
			continue
		}
		path := fmt.Sprintf("output[%d].label_filename", i)
		lines, err := countLines(filepath.Join(m.dir, filepath.FromSlash(name)))
		if err != nil {
			l.add("layout/labels-missing", m, path, fmt.Sprintf("the label file %s is not in the model's folder", name), "put it beside config.pbtxt")
			continue
		}
		classes := int64(1)
		for _, d := range o.GetDims() {
			if d < 1 || classes > math.MaxInt32 { // not fixed, or more than any file has lines
				classes = 0
				break
			}
			classes *= min(d, math.MaxInt32)
		}
		if classes > 0 && int64(lines) != classes {
			l.add("layout/labels-count", m, path, fmt.Sprintf("%s has %d labels, output %s has %d classes", name, lines, o.GetName(), classes), "one line a class")
		}
	}
}

func countLines(path string) (int, error) {
	f, err := regular.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	n := 0
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		n++
	}
	return n, s.Err()
}

// complete fills in backend and platform as the server does.
func (m *model) complete() {
	m.backend, m.format = m.config.GetBackend(), m.config.GetPlatform()
	file := m.config.GetDefaultModelFilename()
	has := func(name string) bool {
		if m.format != "" || file != "" || len(m.folders) == 0 {
			return false
		}
		names := make([]string, len(m.folders))
		for i, f := range m.folders {
			names[i] = f.name
		}
		_, err := os.Stat(filepath.Join(m.dir, slices.Min(names), name)) // the server looks into the first folder
		return err == nil
	}
	for _, k := range []struct{ backend, platform, file string }{
		{"tensorrt", "tensorrt_plan", "model.plan"},
		{"onnxruntime", "onnxruntime_onnx", "model.onnx"},
		{"openvino", "", "model.xml"},
		{"pytorch", "pytorch_libtorch", "model.pt"},
		{"python", "", "model.py"},
	} {
		if m.backend == "" && (k.platform != "" && m.format == k.platform || file == k.file || has(k.file)) {
			m.backend = k.backend
		}
		if m.backend == k.backend && m.format == "" {
			m.format = k.platform
		}
	}
	if dot := strings.IndexByte(m.name, '.'); m.backend == "" && m.format == "" && file == "" && dot >= 0 {
		m.backend = m.name[dot+1:] // model.<backend>: a custom backend
	}
}

// modelFileName returns the name of the file in a version folder.
func (m *model) modelFileName() string {
	if f := m.config.GetDefaultModelFilename(); f != "" {
		return f
	}
	switch m.backend {
	case "tensorrt":
		return "model.plan"
	case "onnxruntime":
		return "model.onnx"
	case "pytorch":
		return "model.pt"
	case "python":
		return "model.py"
	}
	return ""
}
