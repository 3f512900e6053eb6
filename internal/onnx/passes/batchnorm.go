package passes

import (
	"io"
	"math"

	"github.com/trtship/trtship/internal/onnx/graph"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
)

// BatchNorm folds a BatchNormalization in inference mode into the Conv or
// ConvTranspose in front of it, if nothing else reads the convolution and all
// numbers are constant. Every folded convolution gets weights of its own.
type BatchNorm struct{}

// Name returns "fuse-batchnorm".
func (BatchNorm) Name() string { return "fuse-batchnorm" }

// Apply implements Pass.
func (BatchNorm) Apply(m *graph.Module) (int, error) {
	changed := 0
	for _, g := range m.Graphs() {
		for _, n := range g.Nodes {
			f := foldingOf(n)
			if f == nil {
				continue
			}
			ok, err := f.apply(m)
			if err != nil {
				return changed, err
			}
			if ok {
				changed++
			}
		}
	}
	return changed, nil
}

// folding is a BatchNormalization that may go into a convolution.
type folding struct{ conv, bn *graph.Node }

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
	w, bias := conv.Input(1), conv.Input(2)
	if !w.Constant() || (bias != nil && !bias.Constant()) || !foldable(w) {
		return nil
	}
	return &folding{conv: conv, bn: n}
}

// apply gives the convolution weights of its own and takes the other node out,
// if the numbers allow it.
func (f *folding) apply(m *graph.Module) (bool, error) {
	numbers, ok, err := readFusion(m, f.conv, f.bn)
	if err != nil || !ok {
		return false, err
	}
	scale, shift := numbers.affine()
	if scale == nil {
		return false, nil
	}
	weights, err := numbers.scaled(m, scale)
	if err != nil {
		return false, err
	}
	g := f.bn.Graph
	shifts := fromFloats(numbers.typ, []int64{int64(len(shift))}, shift).tensor()
	f.conv.SetInput(1, g.AddInit(f.conv.In[1].Name+"_bn", weights))
	f.conv.SetInput(2, g.AddInit(f.bn.Out[0].Name+"_bias", shifts))
	return f.bn.Bypass(f.bn.In[0]), nil
}

func foldable(w *graph.Value) bool {
	switch onnxpb.TensorProto_DataType(w.Init.GetDataType()) {
	case onnxpb.TensorProto_FLOAT, onnxpb.TensorProto_DOUBLE:
		return len(w.Init.GetDims()) >= 3
	}
	return false
}

// fusion is the numbers of a convolution and its BatchNormalization. The
// weights themselves are not read.
type fusion struct {
	weights                           *onnxpb.TensorProto
	typ                               dataType
	shape                             []int64 // of the weights
	bias, gamma, beta, mean, variance []float64
	epsilon                           float64
	transposed                        bool
	group                             int64
}

func readFusion(m *graph.Module, conv, bn *graph.Node) (fusion, bool, error) {
	w := conv.In[1].Init
	f := fusion{
		weights: w, typ: dataType(w.GetDataType()), shape: w.GetDims(), epsilon: float64(bn.Float("epsilon", 1e-5)),
		transposed: conv.Op == "ConvTranspose", group: conv.Int("group", 1),
	}
	channels := f.shape[0]
	if f.transposed {
		if f.group < 1 || f.shape[0]%f.group != 0 {
			return f, false, nil
		}
		channels = f.shape[1] * f.group
	}
	if product(f.shape) == 0 {
		return f, false, nil
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
		if !ok || a.typ != f.typ || int64(len(values)) != channels {
			return f, false, nil
		}
		*to = values
	}
	return f, true, nil
}

// Factors outside of these bounds could take weights out of their type's range.
const (
	leastFactor = 1e-15
	mostFactor  = 1e15
)

// affine returns the factor and the bias of each channel, or nil if a variance
// is not positive or a number gets out of hand.
func (f fusion) affine() (scale, shift []float64) {
	scale, shift = make([]float64, len(f.gamma)), make([]float64, len(f.gamma))
	for i := range scale {
		v := f.variance[i] + f.epsilon
		if !(v > 0) {
			return nil, nil
		}
		scale[i] = f.gamma[i] / math.Sqrt(v)
		shift[i] = (f.bias[i]-f.mean[i])*scale[i] + f.beta[i]
		size := math.Abs(scale[i])
		if size != 0 && !(size >= leastFactor && size <= mostFactor) || !(math.Abs(shift[i]) <= math.MaxFloat32) {
			return nil, nil
		}
	}
	return scale, shift
}

// scaled returns weights that are multiplied by the factor of their channel
// while they are read.
func (f fusion) scaled(m *graph.Module, factor []float64) (*onnxpb.TensorProto, error) {
	open := func() (*io.SectionReader, error) { return m.Source.TensorReader(f.weights) }
	if _, err := open(); err != nil {
		return nil, err
	}
	r := &scaledReader{open: open, width: widthOf(f.typ), double: f.typ == onnxpb.TensorProto_DOUBLE}
	if !f.transposed { // [out, in/group, ...]
		r.run, r.factors = product(f.shape[1:]), factor
	} else { // [in, out/group, ...]
		r.run = product(f.shape[2:])
		for in := range f.shape[0] {
			group := in / (f.shape[0] / f.group)
			r.factors = append(r.factors, factor[group*f.shape[1]:(group+1)*f.shape[1]]...)
		}
	}
	t := &onnxpb.TensorProto{DataType: f.weights.DataType, Dims: f.shape}
	m.Source.Lazy(t, r)
	return t, nil
}
