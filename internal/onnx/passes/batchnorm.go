package passes

import (
	"encoding/binary"
	"math"
	"runtime"

	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"golang.org/x/sync/errgroup"
)

// BatchNorm folds a BatchNormalization in inference mode into the Conv or
// ConvTranspose in front of it, if nothing else reads the convolution and all
// numbers are constant. Every folded convolution gets weights of its own.
type BatchNorm struct{}

// Name returns "fuse-batchnorm".
func (BatchNorm) Name() string { return "fuse-batchnorm" }

// Apply implements Pass.
func (BatchNorm) Apply(m *graph.Module) (int, error) {
	var found []*folding
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			if f := foldingOf(n); f != nil {
				m.Made += onnx.TensorBytes(f.conv.In[1].Init)
				found = append(found, f)
			}
		}
	}
	// Weights are read and scaled side by side; the graph changes afterwards, in order.
	var work errgroup.Group
	work.SetLimit(runtime.GOMAXPROCS(0))
	for _, f := range found {
		work.Go(func() error { return f.compute(m) })
	}
	if err := work.Wait(); err != nil {
		return 0, err
	}
	changed := 0
	for _, f := range found {
		if f.weights != nil && f.apply() {
			changed++
		}
	}
	return changed, nil
}

// folding is a BatchNormalization that may go into a convolution, and what the
// convolution then gets.
type folding struct {
	conv, bn        *graph.Node
	weights, shifts *onnxpb.TensorProto // nil if the numbers do not allow it
}

// foldingOf returns the folding of n, or nil if there is none.
func foldingOf(n *graph.Node) *folding {
	if n.Removed || !n.Standard("BatchNormalization") || len(n.In) != 5 || n.In[0] == nil || n.Output(0) == nil || !n.InferenceBatchNorm() {
		return nil
	}
	conv := n.In[0].Def
	if conv == nil || conv.Graph != n.Graph || !conv.Standard("Conv", "ConvTranspose") || n.In[0].OnlyUser() != n {
		return nil
	}
	for _, o := range n.Out[1:] {
		if o != nil && o.Used() {
			return nil
		}
	}
	w, bias, m := conv.Input(1), conv.Input(2), n.Graph.Module
	if !w.Constant() || (bias != nil && !bias.Constant()) || !foldable(w) || m.Made+onnx.TensorBytes(w.Init) > maxMade {
		return nil
	}
	return &folding{conv: conv, bn: n}
}

// compute works out the new weights. It changes nothing of the graph.
func (f *folding) compute(m *graph.Module) error {
	numbers, ok, err := readFusion(m, f.conv, f.bn)
	if err != nil || !ok {
		return err
	}
	f.weights, f.shifts = numbers.apply()
	return nil
}

// apply gives the convolution its new weights and takes the other node out.
func (f *folding) apply() bool {
	g, w := f.bn.Graph, f.conv.In[1]
	f.conv.SetInput(1, g.AddInit(w.Name+"_bn", f.weights))
	f.conv.SetInput(2, g.AddInit(f.bn.Out[0].Name+"_bias", f.shifts))
	return f.bn.Bypass(f.bn.In[0])
}

func foldable(w *graph.Value) bool {
	switch onnxpb.TensorProto_DataType(w.Init.GetDataType()) {
	case onnxpb.TensorProto_FLOAT, onnxpb.TensorProto_DOUBLE:
		return len(w.Init.GetDims()) >= 3
	}
	return false
}

// fusion is the numbers of a convolution and its BatchNormalization.
type fusion struct {
	w                                 array
	bias, gamma, beta, mean, variance []float64
	epsilon                           float64
	transposed                        bool
	group                             int64
}

func readFusion(m *graph.Module, conv, bn *graph.Node) (fusion, bool, error) {
	f := fusion{epsilon: float64(bn.Float("epsilon", 1e-5)), transposed: conv.Op == "ConvTranspose", group: conv.Int("group", 1)}
	var err error
	if f.w, err = read(m, conv.In[1]); err != nil {
		return f, false, err
	}
	channels := f.w.shape[0]
	if f.transposed {
		if f.group < 1 || f.w.shape[0]%f.group != 0 {
			return f, false, nil
		}
		channels = f.w.shape[1] * f.group
	}
	for i, to := range []*[]float64{&f.gamma, &f.beta, &f.mean, &f.variance, &f.bias} {
		v := conv.Input(2)
		if i < 4 {
			v = bn.In[i+1]
		} else if v == nil {
			f.bias = make([]float64, channels)
			continue
		}
		if v == nil || !v.Constant() {
			return f, false, nil
		}
		a, err := read(m, v)
		if err != nil {
			return f, false, err
		}
		values, ok := a.floats()
		if !ok || a.typ != f.w.typ || int64(len(values)) != channels {
			return f, false, nil
		}
		*to = values
	}
	return f, true, nil
}

// apply returns the new weights and bias, or nil if a variance is not positive
// or a number gets out of hand.
func (f fusion) apply() (w, b *onnxpb.TensorProto) {
	scale := make([]float64, len(f.gamma))
	shift := make([]float64, len(f.gamma))
	for i := range scale {
		v := f.variance[i] + f.epsilon
		if !(v > 0) {
			return nil, nil
		}
		scale[i] = f.gamma[i] / math.Sqrt(v)
		shift[i] = (f.bias[i]-f.mean[i])*scale[i] + f.beta[i]
	}
	for _, x := range shift {
		if !(math.Abs(x) <= limitOf(f.w.typ)) {
			return nil, nil
		}
	}
	if !f.scale(scale) {
		return nil, nil
	}
	return f.w.tensor(), fromFloats(f.w.typ, []int64{int64(len(shift))}, shift).tensor()
}

// scale multiplies the weights, which f owns, by the factor of their channel.
// It reports whether all of them stay finite.
func (f fusion) scale(factor []float64) bool {
	shape, ok := f.w.shape, true
	if !f.transposed { // [out, in/group, ...]
		row := product(shape[1:]) * f.w.width()
		for c, x := range factor {
			ok = f.w.scaleRun(f.w.data[int64(c)*row:int64(c+1)*row], x) && ok
		}
		return ok
	}
	row := product(shape[2:]) * f.w.width()
	for in := range shape[0] { // [in, out/group, ...]
		group := in / (shape[0] / f.group)
		for out := range shape[1] {
			at := (in*shape[1] + out) * row
			ok = f.w.scaleRun(f.w.data[at:at+row], factor[group*shape[1]+out]) && ok
		}
	}
	return ok
}

// scaleRun multiplies float32 or float64 elements in place.
func (a array) scaleRun(b []byte, factor float64) bool {
	le := binary.LittleEndian
	ok := true
	if a.typ == onnxpb.TensorProto_FLOAT {
		for ; len(b) >= 4; b = b[4:] {
			x := float32(float64(math.Float32frombits(le.Uint32(b))) * factor)
			ok = ok && x-x == 0
			le.PutUint32(b, math.Float32bits(x))
		}
		return ok
	}
	for ; len(b) >= 8; b = b[8:] {
		x := math.Float64frombits(le.Uint64(b)) * factor
		ok = ok && x-x == 0
		le.PutUint64(b, math.Float64bits(x))
	}
	return ok
}

func limitOf(t onnxpb.TensorProto_DataType) float64 {
	if t == onnxpb.TensorProto_FLOAT {
		return math.MaxFloat32
	}
	return math.MaxFloat64
}
