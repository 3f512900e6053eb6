package precision

import (
	"fmt"

	"github.com/trtship/trtship/internal/failure"
	"github.com/trtship/trtship/internal/onnx"
	"github.com/trtship/trtship/internal/onnx/onnxpb"
	"github.com/trtship/trtship/internal/tensor"
)

// bfloat16Opset is the opset to which a graph is raised at most. With opset 22
// convolutions, pooling and most activations take bfloat16.
const bfloat16Opset = 22

// bfloat16Since is the opset from which on all floating-point inputs and outputs
// of an operator may be bfloat16, where that is not 13; 0: none up to opset 28.
// Taken from the schemas of onnx 1.23; a test compares the two.
var bfloat16Since = map[string]int64{
	"BatchNormalization": 14, "CumSum": 14, "Trilu": 14,
	"CastLike": 15, "Pow": 15,
	"GreaterOrEqual": 16, "LeakyRelu": 16, "LessOrEqual": 16, "PRelu": 16, "Where": 16,
	"LayerNormalization": 17,
	"CenterCropPad":      18, "Col2Im": 18, "GroupNormalization": 18,
	"DequantizeLinear": 19, "QuantizeLinear": 19,
	"AffineGrid": 20, "ConstantOfShape": 20, "Gelu": 20, "IsInf": 20,
	"Acos": 22, "Acosh": 22, "Asin": 22, "Asinh": 22, "Atan": 22, "Atanh": 22, "AveragePool": 22, "Conv": 22, "ConvTranspose": 22,
	"Cos": 22, "Cosh": 22, "DeformConv": 22, "Det": 22, "Dropout": 22, "Elu": 22, "GRU": 22, "GlobalAveragePool": 22, "GlobalLpPool": 22,
	"GlobalMaxPool": 22, "GridSample": 22, "HardSigmoid": 22, "HardSwish": 22, "InstanceNormalization": 22, "LSTM": 22,
	"LpNormalization": 22, "LpPool": 22, "MaxPool": 22, "MaxRoiPool": 22, "MaxUnpool": 22, "Mish": 22, "NegativeLogLikelihoodLoss": 22,
	"RNN": 22, "RoiAlign": 22, "Round": 22, "Selu": 22, "Sin": 22, "Sinh": 22, "Softplus": 22, "Softsign": 22, "Tan": 22, "ThresholdedRelu": 22,
	"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23,
	"Swish": 24, "TensorScatter": 24, "TopK": 24, "BitCast": 26, "CumProd": 26, "CausalConvWithState": 27, "LinearAttention": 27,
	"Celu": 28, "Compress": 28, "Einsum": 28, "ReverseSequence": 28, "SwiGLU": 28,
	"OneHot": 0, "Scatter": 0, "Shrink": 0, "Upsample": 0,
}

// takesBFloat16 returns the opset from which on an operator takes bfloat16; 0 is
// never. Resize is one that does so since 13, but for inputs that stay float32.
func takesBFloat16(op string) int64 {
	if since, ok := bfloat16Since[op]; ok {
		return since
	}
	return 13
}

// refusesBFloat16 returns why a node of an opset cannot compute in bfloat16;
// empty if it can.
func refusesBFloat16(op string, opset int64) string {
	switch since := takesBFloat16(op); {
	case since == 0:
		return op + " takes no bfloat16"
	case since > opset:
		return fmt.Sprintf("%s takes bfloat16 from opset %d on, the graph is in opset %d", op, since, opset)
	}
	return ""
}

// raiseForBFloat16 returns m in the lowest opset in which as many operators take
// bfloat16 as in opset 22, with a note if that is not m's own. Where the opset
// cannot be raised, m is returned as it is: what takes no bfloat16 there stays
// float32 and is named.
func raiseForBFloat16(m *onnx.Model) (raised *onnx.Model, note string, err error) {
	have := m.Opset("")
	if have < 13 {
		return nil, "", failure.New(failure.Model, "convert to %s: opset %d is too old, 13 is needed", tensor.BFloat16, have).
			WithHint("export with export.opset 13 or later")
	}
	want, because := have, ""
	m.Walk(func(p onnx.Place, n *onnxpb.NodeProto) bool {
		if p.Function != nil || onnx.Domain(n.GetDomain()) != "" {
			return true
		}
		if _, never := float32Operators[n.GetOpType()]; never {
			return true
		}
		if since := takesBFloat16(n.GetOpType()); since > want && since <= bfloat16Opset {
			want, because = since, n.GetOpType()
		}
		return true
	})
	if want == have {
		return m, "", nil
	}
	raised, err = RaiseOpset(m, want)
	if err != nil {
		return m, fmt.Sprintf("nodes that take bfloat16 from opset %d on stay float32: %v", want, err), nil //nolint:nilerr // a graph of less bfloat16 is one too
	}
	return raised, fmt.Sprintf("opset %d became %d, from which on %s takes bfloat16", have, want, because), nil
}
