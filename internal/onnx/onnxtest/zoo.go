package onnxtest

import "github.com/trtship/trtship/internal/tensor"

// Zoo returns a graph of every operator whose shape or value is worked out
// without running it, over inputs x [batch,3,8,8], ids [batch,seq] and flag. It
// has no outputs: a test adds those that it looks at.
func Zoo() *Builder {
	b := New(18).Input("x", tensor.Float32, "batch", 3, 8, 8).Input("ids", tensor.Int64, "batch", "seq").Input("flag", tensor.Bool)
	zooConstants(b)
	zooShapes(b)
	zooArithmetic(b)
	zooMoves(b)
	zooLayers(b)
	zooControl(b)
	return b
}

func zooConstants(b *Builder) {
	b.Floats("table", []int64{10, 4}, seq(40)...).Floats("w", []int64{6, 3, 3, 3}, seq(162)...).Floats("wt", []int64{3, 2, 2, 2}, seq(24)...).
		Floats("one", []int64{}, 1).Floats("two", []int64{}, 2).Floats("half", []int64{}, 0.5).Floats("lin", []int64{8, 5}, seq(40)...).Floats("bias5", []int64{5}, seq(5)...).
		Floats("scale3", []int64{3}, 1, 2, 3).Floats("zero3", []int64{3}, 0, 0, 0).Floats("var3", []int64{3}, 1, 1.5, 2).
		Int("i0", 0).Int("i1", 1).Int("i2", 2).Ints("l0", 0).Ints("l1", 1).Ints("l2", 2).Ints("l3", 3).Ints("lm1", -1).Ints("l23", 2, 3).
		Ints("big", 1<<62).Ints("pads", 0, 0, 1, 1, 0, 0, 2, 2).Ints("nopads", 0, 0, 0, 0, 0, 0, 0, 0).Ints("halves", 4, 4).Ints("rep", 1, 2, 1, 1).Ints("onesr", 1, 1, 1, 1).
		Ints("l24", 24).Ints("l192", 192).Ints("l01", 0, 1).Ints("keep0", 0, -1).Ints("one1", 1)
}

func seq(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(i%7)*0.25 - 0.5
	}
	return out
}

// zooShapes is arithmetic on shapes, as exporters write it.
func zooShapes(b *Builder) {
	b.Node("Shape", "x", "sh").Node("Shape", "x", "sh12", Int("start", 1), Int("end", 3)).Node("Size", "table", "size").
		Node("Gather", "sh i0", "bsz").Node("Gather", "sh i1", "chan").Node("Gather", "sh l23", "hw").Node("Gather", "sh lm1", "last").
		Node("Unsqueeze", "bsz l0", "bsz1").Node("Unsqueeze", "chan l0", "chan1").Node("Squeeze", "bsz1 l0", "bsz0").
		Node("Concat", "bsz1 chan1 lm1", "target", Int("axis", 0)).Node("Reshape", "x target", "flat").
		Node("Concat", "bsz1 l192", "t2", Int("axis", 0)).Node("Reshape", "x t2", "flat2").
		Node("Reshape", "x keep0", "flat3").Node("Slice", "sh l1 l3", "mid").Node("Slice", "sh l2 big", "tail").Node("Slice", "sh lm1 big l0", "tail1").
		Node("Mul", "chan i2", "chan2").Node("Add", "chan i1", "chanp").Node("Sub", "chan i1", "chanm").Node("Div", "chan i2", "chand").Node("Mod", "chan i2", "chanmod").
		Node("Mul", "bsz i2", "bsz2").Node("Div", "bsz2 i2", "bszd").Node("Max", "chan i2", "cmax").Node("Min", "chan i2", "cmin").Node("Neg", "chan", "cneg").
		Node("Equal", "chan i2", "ceq").Node("Greater", "chan i2", "cgt").Node("Less", "chan i2", "clt").Node("GreaterOrEqual", "chan i2", "cge").Node("LessOrEqual", "chan i2", "cle").
		Node("And", "ceq cgt", "cand").Node("Or", "ceq cgt", "cor").Node("Xor", "ceq cgt", "cxor").Node("Not", "ceq", "cnot").Node("Equal", "bsz bsz0", "same").
		Node("Where", "cgt chan i2", "cwhere").Node("Cast", "chan", "cint", Int("to", 6)).Node("Cast", "cint", "clong", Int("to", 7)).Node("Cast", "chan", "cbool", Int("to", 9)).
		Node("ReduceProd", "sh", "numel", Int("keepdims", 0)).Node("ReduceProd", "hw", "hwprod").Node("ConstantOfShape", "chan1", "cos").
		Node("ConstantOfShape", "bsz1", "cosb", Tensor("value", tensor.FromInt64s(tensor.Int64, []int64{1}, []int64{7}))).
		Node("Range", "i0 chan i1", "range").Node("Range", "i0 bsz i1", "rangeb").Node("Expand", "l1 chan1", "exp").Node("Expand", "one target2", "expb").
		Node("Concat", "bsz1 one1", "target2", Int("axis", 0)).Node("Identity", "chan1", "idc").Node("ReduceProd", "hw", "hwp", Int("keepdims", 0))
	// target2 is made after it is read: Check sorts.
}

func zooArithmetic(b *Builder) {
	for _, op := range []string{"Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Abs", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Neg", "Softplus", "LeakyRelu", "Elu", "HardSwish"} {
		b.Node(op, "x", "u"+op)
	}
	b.Node("Softmax", "x", "soft", Int("axis", 1)).Node("Clip", "x half two", "clip").Node("Add", "x scale3_", "addb").Node("Mul", "x one", "mul1").Node("Pow", "x two", "pow").
		Node("Unsqueeze", "scale3 l12", "scale3_").Ints("l12", 1, 2).Node("Sum", "x x x", "sum3").Node("Mean", "x mul1", "mean2").Node("IsNaN", "x", "isnan").
		Node("Cast", "x", "half16", Int("to", 10)).Node("Cast", "half16", "back32", Int("to", 1)).Node("CastLike", "ids x", "idsf").Node("Dropout", "x", "drop").
		Node("CumSum", "x i1", "cum").Node("Trilu", "x", "tri").Node("Sub", "x x", "zero").Node("Where", "isnan zero x", "denan")
}

func zooMoves(b *Builder) {
	b.Node("Transpose", "x", "tr", Ints("perm", 0, 2, 3, 1)).Node("Transpose", "table", "trt").Node("Flatten", "x", "fl").Node("Flatten", "x", "fl2", Int("axis", -2)).
		Node("Slice", "x l0 l2 l2", "sl").Node("Slice", "x l1 big l2", "sl2").Node("Slice", "x lm1 minbig l3 lm1", "rev").Ints("minbig", -(1<<62)).Node("Slice", "ids l1 big l1", "idsl").
		Node("Slice", "ids l0 lm1 l1", "idscut").Node("Slice", "ids l0 l1 l1", "idone").Node("Slice", "ids l0 bsz1 l1", "idsdyn").
		Node("Gather", "table ids", "emb").Node("Gather", "x l0", "gx", Int("axis", 1)).Node("GatherElements", "table gidx", "ge", Int("axis", 1)).Init("gidx", tensor.FromInt64s(tensor.Int64, []int64{10, 1}, make([]int64, 10))).
		Node("Squeeze", "idone l1", "sq").Node("Squeeze", "one1x", "sqa").Floats("one1x", []int64{1, 3, 1}, 1, 2, 3).Node("Unsqueeze", "ids lm1", "un").Node("Concat", "x x", "cat", Int("axis", 1)).
		Node("Split", "x halves", "sp1 sp2", Int("axis", 2)).Node("Split", "x", "se1 se2 se3", Int("axis", 1), Int("num_outputs", 3)).
		Node("Pad", "x pads", "pad").Node("Pad", "x nopads", "pad0").Node("Tile", "x rep", "tile").Node("Tile", "x onesr", "tile1").Node("Expand", "scale3_ sh3", "expx").Ints("sh3", 2, 3, 4, 1)
}

func zooLayers(b *Builder) {
	b.Node("Conv", "x w", "conv", Ints("pads", 1, 1, 1, 1), Ints("kernel_shape", 3, 3)).Node("Conv", "x w", "conv2", Ints("strides", 2, 2)).Node("Conv", "x w", "conv3", String("auto_pad", "SAME_UPPER"), Ints("strides", 2, 2)).
		Node("Conv", "x w", "conv4", String("auto_pad", "VALID"), Ints("dilations", 2, 2)).Node("MaxPool", "x", "pool pidx", Ints("kernel_shape", 2, 2), Ints("strides", 2, 2)).
		Node("AveragePool", "x", "apool", Ints("kernel_shape", 3, 3), Int("ceil_mode", 1), Ints("strides", 2, 2)).Node("ConvTranspose", "x wt", "convt", Ints("strides", 2, 2)).
		Node("GlobalAveragePool", "x", "gap").Node("MatMul", "x lin", "mm").Node("MatMul", "lin1 lin", "mv").Floats("lin1", []int64{8}, seq(8)...).Node("MatMul", "x lin1", "mv2").
		Node("Gemm", "fl lin2 bias5", "gemm", Int("transB", 1)).Floats("lin2", []int64{5, 192}, seq(960)...).Node("BatchNormalization", "x scale3 zero3 zero3 var3", "bn").
		Node("LayerNormalization", "x ln", "lnorm").Floats("ln", []int64{8}, seq(8)...).Node("ReduceMean", "x l23", "rm").Node("ReduceMean", "x l23", "rmk", Int("keepdims", 0)).Node("ReduceMax", "x", "rall").
		Node("ReduceSum", "x lm1", "rs").Node("ArgMax", "x", "am", Int("axis", 1)).Node("Resize", "x - - sizes", "rz", String("mode", "nearest")).Ints("sizes", 2, 3, 16, 16).
		Node("QuantizeLinear", "x half", "q").Node("DequantizeLinear", "q half", "dq").Node("PRelu", "x half", "prelu").Node("InstanceNormalization", "x scale3 zero3", "inorm")
}

func zooControl(b *Builder) {
	then := New(18).Node("Relu", "x", "th").Node("Shape", "th", "ths").Node("Gather", "ths i1", "thc").Output("th", tensor.Float32).Output("thc", tensor.Int64)
	other := New(18).Node("Neg", "x", "el").Node("Identity", "i2", "elc").Output("el", tensor.Float32).Output("elc", tensor.Int64)
	b.Node("If", "flag", "if1 if2", Body("then_branch", then), Body("else_branch", other)).Node("Shape", "if1", "ifs").Node("Gather", "ifs i1", "ifc")
}
