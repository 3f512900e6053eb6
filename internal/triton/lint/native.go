package lint

import (
	"archive/zip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/engine"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/triton"
	"github.com/trtship/trtship/internal/triton/kserve"
	"github.com/trtship/trtship/internal/triton/pbtxt"
	"github.com/trtship/trtship/internal/triton/tritonpb"
)

// native compares the configuration with the model file of every version that
// the policy serves.
func (l *linter) native(m *model) {
	if m.backend == "tensorrt" {
		l.planDevice(m)
	}
	for _, f := range m.served {
		file := m.modelFileName()
		if file == "" {
			continue
		}
		path := filepath.Join(m.dir, f.name, filepath.FromSlash(file))
		info, err := os.Stat(path)
		if err != nil {
			l.noFile(m, f, file)
			continue
		}
		if info.IsDir() && m.backend == "onnxruntime" {
			path = filepath.Join(path, "model.onnx") // a folder with external data
		}
		switch m.backend {
		case "onnxruntime":
			l.onnx(m, f, path)
		case "tensorrt":
			l.plan(m, f, path)
		case "pytorch":
			l.torch(m, f, path)
		}
	}
}

func (l *linter) planDevice(m *model) {
	for i, g := range m.config.GetInstanceGroup() {
		if g.GetKind() == tritonpb.ModelInstanceGroup_KIND_CPU {
			l.add("plan/device", m, fmt.Sprintf("instance_group[%d].kind", i), "KIND_CPU, and a TensorRT plan runs on a GPU only", "write kind: KIND_GPU")
		}
	}
}

// noFile says which file is missing, and which one is there instead.
func (l *linter) noFile(m *model, f folder, file string) {
	rule := "layout/model-file"
	if m.backend == "tensorrt" {
		rule = "layout/plan-file"
	}
	var others []string
	entries, _ := os.ReadDir(filepath.Join(m.dir, f.name))
	for _, e := range entries {
		if modelFile(e.Name()) {
			others = append(others, e.Name())
		}
	}
	text, hint := fmt.Sprintf("version %s has no %s", f.name, file), ""
	if len(others) > 0 {
		text += ", but " + strings.Join(others, ", ")
		hint = fmt.Sprintf("rename it, or write default_model_filename: %q", others[0])
		if ext := filepath.Ext(others[0]); ext != filepath.Ext(file) {
			text = fmt.Sprintf("%s needs %s, version %s has only %s", m.what(), file, f.name, strings.Join(others, ", "))
			hint = "change platform or backend, or package the model again"
		}
	}
	l.addAt(rule, m, f.name, text, hint)
}

func (m *model) what() string {
	if p := m.config.GetPlatform(); p != "" {
		return "platform " + p
	}
	return "backend " + m.backend
}

// onnx applies the rules of the onnxruntime backend.
func (l *linter) onnx(m *model, f folder, path string) {
	sig, err := triton.ReadONNX(path)
	if err != nil {
		text := err.Error()
		if e, ok := errors.AsType[*failure.Error](err); ok {
			text = e.Message
		}
		l.addAt("model/unreadable", m, filepath.Join(f.name, filepath.Base(path)), text, "")
		return
	}
	l.compare(m, f, sig, onnxRules)
	if m.config.GetMaxBatchSize() > 0 {
		for i, in := range m.config.GetInput() {
			if in.GetOptional() {
				l.add("model/optional", m, fmt.Sprintf("input[%d].optional", i), fmt.Sprintf("input %s is optional, which is not possible with batching", in.GetName()), "set max_batch_size: 0, or require it")
			}
		}
	}
	l.controls(m, sig)
}

// ruleSet names the rules of a backend for one comparison.
type ruleSet struct{ inputs, input, output, dtype, shape, batch string }

var (
	onnxRules = ruleSet{"model/inputs", "model/input-name", "model/output-name", "model/data-type", "model/shape", "model/batch"}
	planRules = ruleSet{"plan/tensor", "plan/tensor", "plan/tensor", "plan/tensor", "plan/tensor", "plan/batch"}
)

// compare compares the declarations with the model's tensors.
func (l *linter) compare(m *model, f folder, sig triton.Signature, r ruleSet) {
	if m.missing || m.doc.Fatal() && len(m.config.GetInput()) == 0 {
		return // completed by the backend, or unreadable
	}
	of := "the model"
	if len(m.served) > 1 {
		of = "version " + f.name
	}
	batched := l.batch(m, sig, of, r)
	controls := l.controlNames(m)
	declared := map[string]bool{}
	for i, in := range m.config.GetInput() {
		declared[in.GetName()] = true
		l.one(m, in, sig.Inputs, tensorPlace{kind: "input", path: fmt.Sprintf("input[%d]", i), of: of, rule: r.input, r: r, batched: batched})
	}
	renamed := len(m.config.GetInput())+len(controls) == len(sig.Inputs) // said by one, for each
	for _, t := range sig.Inputs {
		if !declared[t.Name] && !controls[t.Name] && len(m.config.GetInput()) > 0 && !renamed {
			l.add(r.inputs, m, "input", fmt.Sprintf("%s needs the input %s, which is not declared", of, t), "")
		}
	}
	for i, out := range m.config.GetOutput() {
		l.one(m, out, sig.Outputs, tensorPlace{kind: "output", path: fmt.Sprintf("output[%d]", i), of: of, rule: r.output, r: r, batched: batched})
	}
}

// batch looks whether the model takes batches if the configuration says so. One
// finding stands for all tensors.
func (l *linter) batch(m *model, sig triton.Signature, of string, r ruleSet) bool {
	if m.config.GetMaxBatchSize() <= 0 {
		return false
	}
	for _, t := range append(append([]triton.Tensor{}, sig.Inputs...), sig.Outputs...) {
		if t.Shape || !t.HasRank {
			continue
		}
		if len(t.Dims) == 0 || t.Dims[0] != -1 {
			l.add(r.batch, m, "max_batch_size", fmt.Sprintf("max_batch_size is %d, and %s does not take batches: %s", m.config.GetMaxBatchSize(), of, t), "export it with a dynamic first dimension, or set max_batch_size: 0")
			return false
		}
	}
	if why, ok := sig.Batched(); !ok {
		l.put(Finding{
			Rule: r.batch, Severity: Warning, Model: m.name, File: m.file, Pos: m.doc.At("max_batch_size"),
			Text: fmt.Sprintf("max_batch_size is %d, and the first dimension may be no batch: %s", m.config.GetMaxBatchSize(), why), Hint: "set max_batch_size: 0",
		})
	}
	return true
}

type tensorPlace struct {
	kind, path, of, rule string
	r                    ruleSet
	batched              bool
}

// one compares one declaration with the model's tensor of that name.
func (l *linter) one(m *model, t io, have []triton.Tensor, p tensorPlace) {
	name := t.GetName()
	i := slices.IndexFunc(have, func(x triton.Tensor) bool { return x.Name == name })
	if i < 0 {
		if name == "" {
			return
		}
		names := make([]string, len(have))
		for j, x := range have {
			names[j] = x.Name
		}
		l.add(p.rule, m, p.path+".name", fmt.Sprintf("%s has no %s %q; it has %s", p.of, p.kind, name, strings.Join(names, ", ")), nearHint(name, names))
		return
	}
	real := have[i]
	if want, ok := kserve.ConfigType(real.DType); t.GetDataType() != tritonpb.DataType_TYPE_INVALID && real.DType != "" && (!ok || want != t.GetDataType()) {
		hint := ""
		if ok {
			hint = "write data_type: " + want.String()
		}
		l.add(p.r.dtype, m, p.path+".data_type", fmt.Sprintf("%s %s is %s here and %s in %s", p.kind, name, t.GetDataType(), real.DType, p.of), hint)
	}
	if real.HasRank && len(t.GetDims()) > 0 && !m.doc.Unread("max_batch_size") {
		l.shape(m, t, real, p)
	}
}

// shape compares dimensions as the backends do: -1 goes with everything.
func (l *linter) shape(m *model, t io, real triton.Tensor, p tensorPlace) {
	dims := t.GetDims()
	if t.GetReshape() != nil {
		dims = t.GetReshape().GetShape()
	}
	model := real.Dims
	if m.config.GetMaxBatchSize() > 0 && !real.Shape {
		if !p.batched && (len(model) == 0 || model[0] != -1) && len(model) != len(dims)+1 {
			return // said once, by batch
		}
		if len(model) > 0 {
			model = model[1:]
		}
	}
	if !compatible(dims, model) {
		l.add(p.r.shape, m, p.path+".dims", fmt.Sprintf("%s %s has dims %s here, %s has %s", p.kind, t.GetName(), shapeText(dims, m), p.of, real), rankHint(dims, model, m))
		return
	}
	for j := range dims {
		if dims[j] == -1 && model[j] != -1 {
			l.add("model/loose-shape", m, p.path+".dims", fmt.Sprintf("%s %s: dimension %d is -1 here and fixed at %d in %s", p.kind, t.GetName(), j, model[j], p.of), fmt.Sprintf("write %d", model[j]))
		}
	}
}

func shapeText(dims []int64, m *model) string {
	s := strings.ReplaceAll(fmt.Sprint(dims), " ", ",")
	if m.config.GetMaxBatchSize() > 0 {
		s += " besides the batch"
	}
	return s
}

func rankHint(dims, model []int64, m *model) string {
	if m.config.GetMaxBatchSize() > 0 && len(dims) == len(model)+1 {
		return "dims do not hold the batch when max_batch_size is not 0: leave out the first"
	}
	return "write dims: " + strings.ReplaceAll(fmt.Sprint(model), " ", ", ")
}

func nearHint(name string, names []string) string {
	if n := pbtxt.Nearest(name, names); n != "" {
		return fmt.Sprintf("did you mean %q", n)
	}
	if len(names) == 1 {
		return fmt.Sprintf("write %q", names[0])
	}
	return ""
}

// controlNames are the inputs that the sequence batcher feeds.
func (l *linter) controlNames(m *model) map[string]bool {
	out := map[string]bool{}
	for _, c := range m.config.GetSequenceBatching().GetControlInput() {
		out[c.GetName()] = true
	}
	for _, s := range m.config.GetSequenceBatching().GetState() {
		out[s.GetInputName()] = true
	}
	for _, b := range m.config.GetBatchInput() {
		for _, n := range b.GetTargetName() {
			out[n] = true
		}
	}
	return out
}

// controls looks whether the sequence controls are inputs of the model.
func (l *linter) controls(m *model, sig triton.Signature) {
	names := make([]string, len(sig.Inputs))
	for i, t := range sig.Inputs {
		names[i] = t.Name
	}
	for i, c := range m.config.GetSequenceBatching().GetControlInput() {
		if c.GetName() != "" && !slices.Contains(names, c.GetName()) {
			l.add("model/control", m, fmt.Sprintf("sequence_batching.control_input[%d]", i), fmt.Sprintf("the sequence control %s is no input of the model (%s)", c.GetName(), strings.Join(names, ", ")), "sequence batching needs a model that takes it")
		}
	}
}

// plan applies the rules of the tensorrt backend, as far as the plan is
// described.
func (l *linter) plan(m *model, f folder, path string) {
	built := l.planVersion(m, f)
	description := filepath.Join(filepath.Dir(path), engine.DescriptionFile)
	if _, err := os.Lstat(description); err != nil {
		if built == "" {
			l.addAt("plan/unknown", m, filepath.Join(f.name, filepath.Base(path)), "nothing says what is in the plan: names, types and shapes are not checked", "keep engine.json beside it, or package it with trtship")
		}
		return
	}
	d, err := engine.DescriptionBeside(path, description)
	if err != nil {
		l.addAt("plan/description", m, filepath.Join(f.name, engine.DescriptionFile), refusal(err), "put the description there that the build of this plan wrote, or remove it")
		return
	}
	if built == "" {
		l.releases(m, f, d.TensorRT)
	}
	sig, err := triton.FromEngine(d)
	if err != nil {
		l.addAt("plan/tensor", m, filepath.Join(f.name, filepath.Base(path)), err.Error(), "")
		return
	}
	l.compare(m, f, sig, planRules)
	if _, high, ok := sig.BatchRange(); ok && int64(m.config.GetMaxBatchSize()) > high {
		l.add("plan/batch", m, "max_batch_size", fmt.Sprintf("max_batch_size is %d, the plan's profiles take %d", m.config.GetMaxBatchSize(), high), fmt.Sprintf("write max_batch_size: %d", high))
	}
}

// refusal is why a description is refused, in one line without its path.
func refusal(err error) string {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok {
		return err.Error()
	}
	if len(e.Details) == 0 {
		return e.Message
	}
	all := make([]string, len(e.Details))
	for i, d := range e.Details {
		all[i] = d.Value
	}
	return strings.Join(all, "; ")
}

// planVersion reads the release that built a plan from our manifest.
func (l *linter) planVersion(m *model, f folder) string {
	manifest, err := triton.ReadManifest(m.dir)
	if err != nil {
		return ""
	}
	built := manifest.Versions[f.name].TensorRT
	l.releases(m, f, built)
	return built
}

func (l *linter) releases(m *model, f folder, built string) {
	if built == "" || l.o.TensorRT == "" || sameRelease(built, l.o.TensorRT) {
		return
	}
	l.addAt("plan/version", m, f.name, fmt.Sprintf("the plan was built by TensorRT %s, the server has %s", built, l.o.TensorRT), "use the server image of that release, or build the plan again")
}

// sameRelease compares major, minor and patch.
func sameRelease(a, b string) bool {
	cut := func(s string) []string {
		p := strings.Split(s, ".")
		return p[:min(len(p), 3)]
	}
	x, y := cut(a), cut(b)
	n := min(len(x), len(y))
	return slices.Equal(x[:n], y[:n])
}

// torch tells a TorchScript archive, which has code, from saved weights.
func (l *linter) torch(m *model, f folder, path string) {
	z, err := zip.OpenReader(path)
	if err != nil {
		l.addAt("model/state-dict", m, filepath.Join(f.name, filepath.Base(path)), "the file is no TorchScript archive", "save it with torch.jit.save, or ship ONNX")
		return
	}
	defer func() { _ = z.Close() }()
	for _, e := range z.File {
		if strings.Contains(e.Name, "/code/") {
			return
		}
	}
	l.addAt("model/state-dict", m, filepath.Join(f.name, filepath.Base(path)), "the file holds weights without code (torch.save of a state dict or a module): the server cannot run it", "save it with torch.jit.save, or ship ONNX")
}
