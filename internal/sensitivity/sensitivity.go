// Package sensitivity says what a precision costs, node by node: each node alone
// computes in the low precision and the model's outputs are compared with those
// of the float32 graph. From the ranking comes the shortest list of nodes that
// have to stay out of the precision for the whole graph to hold its tolerances,
// confirmed by running exactly that graph.
//
// Everything runs in ONNX Runtime on a CPU: it is a preview of an engine.
package sensitivity

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/ort"
	"github.com/trtship/trtship/internal/precision"
	"github.com/trtship/trtship/internal/tensor"
	"github.com/trtship/trtship/internal/validation"
	"github.com/trtship/trtship/report"
)

// Options says what is analyzed.
type Options struct {
	Library   ort.Library
	Path      string      // of the float32 graph
	Model     *onnx.Model // the same, opened
	Reference *validation.Reference
	Config    *config.Config
	Precision string             // fp16, bf16, int8
	Scales    map[string]float32 // for int8
	Observed  func(tensor string) (largest float64, ok bool)
	Scratch   string // an empty folder
	MostKept  int    // give up on a longer list; 0 is 32
	Log       io.Writer
	Progress  func(done, total int64, label string) // may be nil
}

// Row is what one node costs.
type Row struct {
	Node string `json:"node"`
	Op   string `json:"op"`
	// SQNR is the ratio of signal to noise of the worst output in decibels:
	// +Inf if nothing changed, -Inf if an output is not finite any more.
	SQNR     report.Number  `json:"sqnr_db"`
	MaxAbs   report.Number  `json:"max_abs"`
	Output   string         `json:"output"`             // the worst one
	Accuracy *report.Number `json:"accuracy,omitempty"` // of the task
}

// Result is the ranking and the suggestion.
type Result struct {
	Precision string         `json:"precision"`
	Float     *report.Number `json:"accuracy_float32,omitempty"`
	Whole     Row            `json:"whole"` // all nodes at once
	Rows      []Row          `json:"rows"`  // worst first
	// Keep are the nodes that have to be added to Key so that the graph holds.
	Key    string   `json:"key"` // keep_fp32 or int8_exclude
	Keep   []string `json:"keep"`
	Holds  bool     `json:"holds"` // with Keep; confirmed by a run
	Worst  string   `json:"worst"` // the check that came closest to failing, or failed, in the confirming run
	Graphs int      `json:"graphs"`
	Notes  []string `json:"notes,omitempty"`
}

// Analyze ranks the nodes and looks for the suggestion.
func Analyze(ctx context.Context, o Options) (*Result, error) {
	if o.MostKept == 0 {
		o.MostKept = 32
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64, string) {}
	}
	a := &analysis{Options: o, result: &Result{Precision: o.Precision, Key: "keep_fp32"}}
	if o.Precision == "int8" {
		a.result.Key = "int8_exclude"
	}
	if err := a.baseline(ctx); err != nil {
		return nil, err
	}
	if err := a.rank(ctx); err != nil {
		return nil, err
	}
	if err := a.suggest(ctx); err != nil {
		return nil, err
	}
	return a.result, nil
}

type analysis struct {
	Options
	result *Result
	feeds  []feed
	labels []int64
	ranges []precision.OutOfRange // of the whole graph
}

// feed is one run with the float32 answers.
type feed struct {
	in   []tensor.Named
	want []tensor.Named
	rows int64 // that are labelled; 0 for a feed of a point
}

// maxTaskFeeds bounds the labelled runs of each node.
const maxTaskFeeds = 32

// baseline reads the feeds of the opt point (or the first) and of the task, and
// runs the float32 graph on them.
func (a *analysis) baseline(ctx context.Context) error {
	samples := a.samples()
	if len(samples) == 0 {
		return failure.New(failure.Artifact, "analyze sensitivity: the reference has no sample")
	}
	s, err := a.open(ctx, a.Path)
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // it has answered
	for _, sample := range samples {
		in, err := a.Reference.In(sample)
		if err != nil {
			return err
		}
		f := feed{in: in, rows: sample.Rows}
		if f.want, err = (validation.Fed{Session: s}).Infer(ctx, in); err != nil {
			return err
		}
		a.feeds = append(a.feeds, f)
	}
	if err := a.readLabels(); err != nil {
		return err
	}
	want := make([][]tensor.Named, len(a.feeds))
	for i, f := range a.feeds {
		want[i] = f.want
	}
	a.result.Float = a.accuracy(want)
	return nil
}

func (a *analysis) samples() []validation.Sample {
	var out []validation.Sample
	for i, p := range a.Reference.Points {
		if p.Name == "opt" || i == 0 {
			out = nil
			for _, s := range p.Samples {
				s.Rows = 0
				out = append(out, s)
			}
		}
		if p.Name == "opt" {
			break
		}
	}
	if t := a.Reference.Task; t != nil {
		out = append(out, t.Samples[:min(len(t.Samples), maxTaskFeeds)]...)
	}
	return out
}

func (a *analysis) readLabels() error {
	if a.Reference.Task == nil {
		return nil
	}
	arrays, err := tensor.ReadNPZ(filepath.Join(a.Reference.Dir, a.Reference.Task.Labels))
	if err != nil {
		return failure.New(failure.Artifact, "read labels: %w", err)
	}
	for _, t := range arrays {
		a.labels = t.Int64s()
	}
	return nil
}

func (a *analysis) open(ctx context.Context, path string) (*ort.Session, error) {
	return ort.Open(ctx, a.Library, path, validation.SessionOptions(a.Config.Validation, a.Log))
}

// accuracy returns the share of labelled rows whose largest element is the label.
func (a *analysis) accuracy(answers [][]tensor.Named) *report.Number {
	t := a.Reference.Task
	if t == nil {
		return nil
	}
	right, at := 0, 0
	for i, f := range a.feeds {
		if f.rows == 0 {
			continue
		}
		out := answers[i][0].Tensor
		if named, ok := tensor.Find(answers[i], t.Output); ok {
			out = named
		}
		values := out.Float64s()
		width := len(values) / int(max(out.Shape[0], 1))
		for r := range int(f.rows) {
			if at < len(a.labels) && largest(values[r*width:(r+1)*width]) == a.labels[at] {
				right++
			}
			at++
		}
	}
	n := report.Number(float64(right) / float64(max(at, 1)))
	return &n
}

func largest(row []float64) int64 {
	best := int64(0)
	for i, v := range row {
		if math.IsNaN(v) {
			return -1
		}
		if v > row[best] {
			best = int64(i)
		}
	}
	return best
}

// rank measures the whole graph, then every node alone.
func (a *analysis) rank(ctx context.Context) error {
	whole, err := a.convert(nil, nil)
	if err != nil {
		return err
	}
	a.ranges = whole.Ranges
	nodes := a.candidates(whole)
	a.Progress(0, int64(len(nodes)), "all nodes at once")
	if a.result.Whole, err = a.measure(ctx, whole, "all nodes", ""); err != nil {
		return err
	}
	for i, n := range nodes {
		a.Progress(int64(i), int64(len(nodes)), n.name)
		g, err := a.convert([]string{n.name}, nil)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
		row, err := a.measure(ctx, g, n.name, n.op)
		if err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
		a.result.Rows = append(a.result.Rows, row)
	}
	slices.SortStableFunc(a.result.Rows, func(x, y Row) int { return cmp.Compare(float64(x.SQNR), float64(y.SQNR)) })
	return nil
}

// node is one that can be in the precision alone.
type node struct{ name, op string }

// candidates lists the nodes of the main graph that the whole graph has in the
// low precision.
func (a *analysis) candidates(g *precision.Graph) []node {
	kept := map[string]bool{}
	for _, k := range g.Kept {
		kept[k.Node] = true
	}
	var out []node
	for _, n := range a.Model.Graph().GetNode() {
		name := onnx.NodeName(n)
		switch {
		case n.GetOpType() == "Constant" || kept[name] && a.Precision != "int8":
		case a.Precision == "int8":
			if slices.Contains(g.Quantized, name) && n.GetOpType() != "Add" { // an addition is quantized with its neighbour only
				out = append(out, node{name, n.GetOpType()})
			}
		case a.floating(n):
			out = append(out, node{name, n.GetOpType()})
		}
	}
	return out
}

// floating reports whether a node makes an observed activation.
func (a *analysis) floating(n *onnxpb.NodeProto) bool {
	for _, o := range n.GetOutput() {
		if _, ok := a.Observed(o); ok {
			return true
		}
	}
	return false
}

// convert makes the graph in which only those nodes (nil: all) have the
// precision, and keep have not.
func (a *analysis) convert(only, keep []string) (*precision.Graph, error) {
	q := a.Config.Quantize
	q.KeepIO = true
	if a.Precision == "int8" {
		q.Exclude = append(slices.Clone(q.Exclude), keep...)
	} else {
		q.KeepFP32 = append(slices.Clone(q.KeepFP32), keep...)
	}
	r := precision.Request{Precision: a.Precision, Settings: q, Scales: a.Scales, Observed: a.Observed}
	if only != nil {
		r.Only = precision.NewSelection("sensitivity", only)
	} else { // the whole graph is the one that the quantize stage writes
		r.Fallback = a.Config.TensorRT.Int8FP16Fallback && a.Config.Target != "onnxruntime"
	}
	return precision.Convert(a.Model, r)
}

// save writes the graph that is run into the scratch folder.
func (a *analysis) save(g *precision.Graph) (string, func(), error) {
	a.result.Graphs++
	path := filepath.Join(a.Scratch, fmt.Sprintf("graph-%d.onnx", a.result.Graphs))
	m := g.Model
	if g.Preview != nil {
		m = g.Preview
	}
	remove := func() {
		for _, p := range []string{path, path + ".data"} {
			os.Remove(p) //nolint:errcheck // the folder goes away anyway
		}
	}
	return path, remove, m.Save(path, onnx.SaveOptions{})
}

// measure runs a graph and compares it with float32.
func (a *analysis) measure(ctx context.Context, g *precision.Graph, name, op string) (Row, error) {
	row := Row{Node: name, Op: op}
	path, remove, err := a.save(g)
	defer remove()
	if err != nil {
		return row, err
	}
	s, err := a.open(ctx, path)
	if err != nil {
		return row, err
	}
	defer s.Close() //nolint:errcheck // it has answered
	sums := map[string]*noise{}
	answers := make([][]tensor.Named, len(a.feeds))
	for i, f := range a.feeds {
		if answers[i], err = (validation.Fed{Session: s}).Infer(ctx, f.in); err != nil {
			return row, err
		}
		for _, w := range f.want {
			got, ok := tensor.Find(answers[i], w.Name)
			if !ok || !w.DType.Floating() {
				continue
			}
			if sums[w.Name] == nil {
				sums[w.Name] = &noise{}
			}
			sums[w.Name].add(w.Tensor, got)
		}
	}
	row.SQNR = report.Number(math.Inf(1))
	for name, n := range sums {
		if db := n.decibels(); row.Output == "" || db < float64(row.SQNR) || db == float64(row.SQNR) && name < row.Output {
			row.SQNR, row.Output = report.Number(db), name
		}
		row.MaxAbs = max(row.MaxAbs, report.Number(n.most))
	}
	row.Accuracy = a.accuracy(answers)
	return row, nil
}

// noise sums the squares of an output and of its error.
type noise struct {
	signal, error, most float64
	broken              bool
}

func (n *noise) add(want, got tensor.Tensor) {
	w, g := want.Float64s(), got.Float64s()
	if len(w) != len(g) {
		n.broken = true
		return
	}
	for i := range w {
		d := g[i] - w[i]
		if math.IsNaN(d) || math.IsInf(d, 0) {
			if w[i] == g[i] || math.IsNaN(w[i]) && math.IsNaN(g[i]) {
				continue
			}
			n.broken, n.most = true, math.Inf(1)
			continue
		}
		n.signal += w[i] * w[i]
		n.error += d * d
		n.most = max(n.most, math.Abs(d))
	}
}

// decibels returns 10·log10(signal/noise).
func (n *noise) decibels() float64 {
	switch {
	case n.broken:
		return math.Inf(-1)
	case n.error == 0:
		return math.Inf(1)
	}
	return 10 * math.Log10(n.signal/n.error)
}
