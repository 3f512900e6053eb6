package validation

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/tensor"
)

// Input is one input that feeds are made for.
type Input struct {
	Name  string
	DType tensor.DType
	Range tensor.Range // of generated values; empty is the type's default
	Batch bool         // the first axis is the batch, and dynamic
	Rank  int          // number of axes; -1 if not known
}

// Plan says which feeds to make.
type Plan struct {
	Inputs   []Input
	Points   []Point // without samples
	Samples  int     // at each point
	Seed     int64
	User     []string // the user's own feeds: .npz files or folders of .npy files
	MinBatch int64    // smallest batch of the profiles
	Task     *TaskPlan
}

// TaskPlan says where labelled data are.
type TaskPlan struct {
	Metric         string
	Data           string // .npz file
	Labels         string // name of its array of labels
	Output         string // empty: the first output
	Batch          int64  // rows a run
	MaxDegradation float64
}

// WriteFeeds writes the feeds of a plan into dir and returns the reference
// without its answers; see [Reference.Feeds] and [Reference.Save].
func WriteFeeds(dir string, plan Plan) (*Reference, error) {
	r := &Reference{Dir: dir, Manifest: Manifest{Format: ReferenceFormat, Seed: plan.Seed, MinBatch: plan.MinBatch}}
	for _, in := range plan.Inputs {
		r.Inputs = append(r.Inputs, Array{Name: in.Name, DType: in.DType})
		if in.Batch {
			r.BatchInputs = append(r.BatchInputs, in.Name)
		}
	}
	for i, p := range plan.Points {
		p.Samples = nil
		p.Batch = batchOf(p.Shapes, r.BatchInputs)
		for k := range plan.Samples {
			feed, err := generate(plan, p, k)
			if err != nil {
				return nil, err
			}
			s, err := r.write(path.Join(folder(i, p.Name), strconv.Itoa(k)), feed)
			if err != nil {
				return nil, err
			}
			p.Samples = append(p.Samples, s)
		}
		r.Points = append(r.Points, p)
	}
	if err := r.addUser(plan); err != nil {
		return nil, err
	}
	if plan.Task != nil {
		if err := r.addTask(plan); err != nil {
			return nil, err
		}
	}
	if len(r.samples()) == 0 {
		return nil, failure.New(failure.Usage, "make feeds: there is no point and no sample to compare at")
	}
	return r, nil
}

func batchOf(shapes map[string][]int64, batchInputs []string) int64 {
	for _, name := range batchInputs {
		if s := shapes[name]; len(s) > 0 {
			return s[0]
		}
	}
	return 0
}

// generate makes one sample. The words that seed it do not hold the point's
// number, so that a new point leaves the others' feeds as they are.
func generate(plan Plan, p Point, sample int) ([]tensor.Named, error) {
	var feed []tensor.Named
	for _, in := range plan.Inputs {
		shape, ok := p.Shapes[in.Name]
		if !ok {
			return nil, failure.New(failure.Usage, "make feeds: input %q has no shape at point %s", in.Name, p.Name).
				WithHint("give the input a profile with min, opt and max in tensorrt.profiles")
		}
		t, err := tensor.Generate(in.DType, shape, in.Range,
			strconv.FormatInt(plan.Seed, 10), in.Name, p.Name, strconv.Itoa(sample))
		if err != nil {
			return nil, failure.New(failure.Usage, "make feeds: input %q: %w", in.Name, err)
		}
		feed = append(feed, tensor.Named{Name: in.Name, Tensor: t})
	}
	return feed, nil
}

// write stores a feed as name.in.npz.
func (r *Reference) write(name string, feed []tensor.Named) (Sample, error) {
	s := Sample{In: name + ".in.npz", Out: name + ".out.npz"}
	full := filepath.Join(r.Dir, s.In)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return s, err
	}
	return s, tensor.WriteNPZ(full, feed)
}

// addUser adds the user's own feeds: one point for each set of shapes.
func (r *Reference) addUser(plan Plan) error {
	byShape := map[string]int{}
	for i, file := range plan.User {
		feed, err := tensor.ReadFeed(file)
		if err != nil {
			return failure.New(failure.Artifact, "read validation.inputs: %w", err).At(file)
		}
		if feed, err = fit(plan.Inputs, feed, file); err != nil {
			return err
		}
		shapes, key := map[string][]int64{}, ""
		for _, t := range feed {
			shapes[t.Name] = t.Shape
			key += fmt.Sprint(t.Name, t.Shape)
		}
		at, ok := byShape[key]
		if !ok {
			name := "inputs"
			if len(byShape) > 0 {
				name = fmt.Sprintf("inputs %d", len(byShape)+1)
			}
			at = len(r.Points)
			byShape[key] = at
			r.Points = append(r.Points, Point{Name: name, Profile: -1, Shapes: shapes, Batch: batchOf(shapes, r.BatchInputs)})
		}
		p := &r.Points[at]
		s, err := r.write(path.Join(folder(at, p.Name), strconv.Itoa(len(p.Samples))), feed)
		if err != nil {
			return err
		}
		s.Source = fmt.Sprintf("validation.inputs[%d] (%s)", i, filepath.Base(file))
		p.Samples = append(p.Samples, s)
	}
	return nil
}

// fit orders a user's feed as the model's inputs and checks names, types and ranks.
func fit(inputs []Input, feed []tensor.Named, file string) ([]tensor.Named, error) {
	var out []tensor.Named
	for _, in := range inputs {
		t, ok := tensor.Find(feed, in.Name)
		if !ok {
			return nil, failure.New(failure.Usage, "read validation.inputs: there is no array %q", in.Name).At(file).
				With("arrays", "%v", tensor.Names(feed)).WithHint("name one array after each input")
		}
		if t.DType != in.DType && !isNumpy(in.DType) && t.DType.Size() == in.DType.Size() && !t.DType.Floating() {
			t.DType = in.DType // saved as raw integers, as there is no such type in NumPy
		}
		if t.DType != in.DType {
			return nil, failure.New(failure.Usage, "read validation.inputs: array %q is %s, expected %s", in.Name, t.DType, in.DType).At(file)
		}
		if in.Rank >= 0 && len(t.Shape) != in.Rank {
			return nil, failure.New(failure.Usage, "read validation.inputs: array %q has shape %v, expected %d axes", in.Name, t.Shape, in.Rank).At(file)
		}
		out = append(out, tensor.Named{Name: in.Name, Tensor: t})
	}
	for _, t := range feed {
		if !slices.ContainsFunc(inputs, func(in Input) bool { return in.Name == t.Name }) {
			return nil, failure.New(failure.Usage, "read validation.inputs: the model has no input %q", t.Name).At(file).
				With("inputs", "%s", inputNames(inputs))
		}
	}
	return out, nil
}

func inputNames(inputs []Input) string {
	names := make([]string, len(inputs))
	for i, in := range inputs {
		names[i] = in.Name
	}
	return strings.Join(names, ", ")
}
