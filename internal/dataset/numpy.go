package dataset

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trtship/trtship/internal/config"
	"github.com/trtship/trtship/internal/tensor"
)

// numpy reads samples from .npy and .npz files. These forms are known:
//
//	data.npy            samples along axis 0, for a model with one input
//	data.npz            one array an input, samples along axis 0
//	folder/<input>.npy  one file an input, samples along axis 0
//	folder/*.npz        each file one or more samples, one array an input
//	folder/*.npy        each file one or more samples, for a model with one input
type numpy struct {
	inputs []Input
	files  fileList // of the set, for the digest
	parts  []part
	first  []int // index of each part's first sample
	total  int
	ignore int // other files in the folder
}

// part is one file, or one file an input, with its samples.
type part struct {
	name    string
	paths   []string // one an input for a folder of inputs, one otherwise
	member  bool     // arrays are members of an .npz
	samples int
	single  bool // the file holds one sample without an axis of samples
	shapes  [][]int64
	open    *opened // kept open; nil: opened for each read
}

// opened are the arrays of a part in the order of the inputs.
type opened struct {
	arrays  []*array
	closers []io.Closer
}

func (o *opened) close() {
	for _, c := range o.closers {
		c.Close() //nolint:errcheck // read only
	}
}

func openNumpy(ctx context.Context, c config.Calibration, inputs []Input) (source, error) {
	st, err := os.Stat(c.Path)
	if err != nil {
		return nil, refuse("find calibration data: %w", err).At(c.Path).WithHint("mend calibration.path")
	}
	n := &numpy{inputs: inputs, files: fileList{root: c.Path}}
	if !st.IsDir() {
		err = n.addFile(c.Path, true)
	} else {
		err = n.addFolder(ctx, c.Path)
	}
	if err != nil {
		n.close() //nolint:errcheck // read only
		return nil, err
	}
	for _, p := range n.parts {
		n.first = append(n.first, n.total)
		n.total += p.samples
	}
	return n, nil
}

func (n *numpy) addFolder(ctx context.Context, dir string) error {
	npy, npz, err := n.listFolder(dir)
	if err != nil {
		return err
	}
	byInput := make([]string, 0, len(n.inputs))
	for _, in := range n.inputs {
		if p := filepath.Join(dir, in.Name+".npy"); slices.Contains(npy, p) {
			byInput = append(byInput, p)
		}
	}
	switch {
	case len(byInput) == len(n.inputs):
		p := part{name: dir, paths: byInput}
		for _, f := range byInput {
			n.files.add(f)
		}
		return n.addPart(p, true)
	case len(byInput) > 0 && len(npz) == 0:
		return refuse("calibration data hold %d of %d inputs; expected one .npy for each of %s", len(byInput), len(n.inputs), names(n.inputs)).At(dir)
	case len(npz) > 0 && len(npy) > 0:
		return refuse("calibration data mix %d .npy and %d .npz files", len(npy), len(npz)).At(dir)
	}
	if len(npy)+len(npz) == 0 {
		return refuse("no .npy or .npz file found; %d other files", n.ignore).At(dir).
			WithHint("put data there, mend calibration.path, or set calibration.dataset: images for pictures")
	}
	for _, f := range append(npy, npz...) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := n.addFile(f, false); err != nil {
			return err
		}
	}
	return nil
}

func (n *numpy) listFolder(dir string) (npy, npz []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return refuse("list calibration data: %w", err).At(path)
		}
		if strings.HasPrefix(d.Name(), ".") && path != dir {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		switch ext := strings.ToLower(filepath.Ext(path)); {
		case d.IsDir():
		case ext == ".npy":
			npy = append(npy, path)
		case ext == ".npz":
			npz = append(npz, path)
		default:
			n.ignore++
		}
		return nil
	})
	return npy, npz, err
}

func (n *numpy) addFile(path string, keep bool) error {
	p := part{name: path, paths: []string{path}}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".npz":
		p.member = true
	case ".npy":
		if len(n.inputs) > 1 {
			return refuse("a .npy file feeds one input, the model has %d (%s)", len(n.inputs), names(n.inputs)).At(path).
				WithHint("use .npz files with one array an input, or a folder with one .npy an input")
		}
	default:
		return refuse("calibration data are neither .npy nor .npz").At(path).
			WithHint("for pictures set calibration.dataset: images")
	}
	n.files.add(path)
	return n.addPart(p, keep)
}

// addPart opens a part, checks types and shapes, and counts its samples. keep
// leaves the files open, for parts of which there are few.
func (n *numpy) addPart(p part, keep bool) error {
	o, err := n.openPart(p)
	if err != nil {
		return err
	}
	if keep {
		p.open = o
	} else {
		defer o.close()
	}
	for k, in := range n.inputs {
		a := o.arrays[k]
		samples, single, err := samplesOf(a, in)
		if err != nil {
			return err
		}
		if k > 0 && (samples != p.samples || single != p.single) {
			return refuse("calibration data hold %d samples of input %s and %d of input %s", p.samples, n.inputs[0].Name, samples, in.Name).At(p.name)
		}
		p.samples, p.single = samples, single
		shape := a.shape
		if !single {
			shape = shape[1:]
		}
		p.shapes = append(p.shapes, shape)
	}
	if last := len(n.parts) - 1; last >= 0 && slices.EqualFunc(n.parts[last].shapes, p.shapes, slices.Equal) {
		p.shapes = n.parts[last].shapes // one copy for all files of a shape
	}
	n.parts = append(n.parts, p)
	return nil
}

func (n *numpy) openPart(p part) (*opened, error) {
	o := &opened{}
	if !p.member {
		for _, path := range p.paths {
			a, err := openArray(path)
			if err != nil {
				o.close()
				return nil, err
			}
			o.arrays, o.closers = append(o.arrays, a), append(o.closers, a.file)
		}
		return o, nil
	}
	members, closer, err := openMembers(p.paths[0], n.inputs)
	if err != nil {
		return nil, err
	}
	o.closers = []io.Closer{closer}
	for _, in := range n.inputs {
		a, ok := members[in.Name]
		if !ok {
			o.close()
			return nil, refuse("calibration data hold no array for input %s", in.Name).At(p.paths[0]).
				With("found", "%s", sortedNames(members)).With("expected", "%s", names(n.inputs))
		}
		o.arrays = append(o.arrays, a)
	}
	return o, nil
}

// samplesOf checks an array against its input.
func samplesOf(a *array, in Input) (samples int, single bool, err error) {
	from, _ := a.dtype()
	if !convertible(from, in.DType) {
		e := refuse("calibration data of input %s are %s, the model takes %s", in.Name, from, in.DType).At(a.path)
		if in.DType.Floating() {
			e = e.WithHint("apply the model's preprocessing and store the result as float32")
		}
		return 0, false, e
	}
	sample := in.Shape[1:]
	switch {
	case len(a.shape) == len(in.Shape) && matches(a.shape[1:], sample):
		return int(a.shape[0]), false, nil
	case len(a.shape) == len(sample) && matches(a.shape, sample):
		return 1, true, nil
	}
	return 0, false, refuse("calibration data of input %s have the shape %s, expected %s with any number of samples in front, or %s", in.Name,
		describe(a.shape), describe(append([]int64{Any}, sample...)), describe(sample)).At(a.path)
}

func matches(have, want []int64) bool {
	if len(have) != len(want) {
		return false
	}
	for i, w := range want {
		if w >= 0 && have[i] != w {
			return false
		}
	}
	return true
}

func (n *numpy) len() int { return n.total }

// find returns the part of sample i and its row in there.
func (n *numpy) find(i int) (*part, int) {
	at, found := slices.BinarySearch(n.first, i)
	for found && at+1 < len(n.first) && n.first[at+1] == i { // empty parts
		at++
	}
	if !found {
		at--
	}
	return &n.parts[at], i - n.first[at]
}

func (n *numpy) shapes(i int) ([][]int64, error) {
	p, _ := n.find(i)
	return p.shapes, nil
}

func (n *numpy) read(i int, dst [][]byte) error {
	p, row := n.find(i)
	o := p.open
	if o == nil {
		var err error
		if o, err = n.openPart(*p); err != nil {
			return err
		}
		defer o.close()
	}
	for k, in := range n.inputs {
		a := o.arrays[k]
		from, _ := a.dtype()
		if from == in.DType {
			if err := a.rowInto(dst[k], int64(row), int64(p.samples)); err != nil {
				return err
			}
			continue
		}
		raw, err := a.row(int64(row), int64(p.samples))
		if err != nil {
			return err
		}
		if want := tensor.Elements(p.shapes[k]) * int64(in.DType.Size()); int64(len(dst[k])) != want || int64(len(raw)) != want/int64(in.DType.Size())*int64(from.Size()) {
			return refuse("calibration data changed while they were read").At(a.path)
		}
		if err := convert(dst[k], raw, from, in.DType); err != nil {
			return refuse("calibration data of input %s: %w", in.Name, err).At(n.place(i))
		}
	}
	return nil
}

func (n *numpy) place(i int) string {
	p, row := n.find(i)
	if p.single {
		return p.name
	}
	return fmt.Sprintf("%s row %d", p.name, row)
}

func (n *numpy) digest(ctx context.Context, progress func(done, total int64)) (string, error) {
	return hashFiles(ctx, &n.files, progress)
}

func (n *numpy) notes() []string {
	if n.ignore == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d files that are neither .npy nor .npz were ignored", n.ignore)}
}

func (n *numpy) close() error {
	for _, p := range n.parts {
		if p.open != nil {
			p.open.close()
		}
	}
	return nil
}

func names(inputs []Input) string {
	var out []string
	for _, in := range inputs {
		out = append(out, in.Name)
	}
	return strings.Join(out, ", ")
}

func sortedNames(m map[string]*array) string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
