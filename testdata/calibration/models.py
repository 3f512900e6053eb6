"""Writes cnn.onnx and overflow.onnx with labelled data for each. Needs onnx,
onnxruntime and numpy. The labels are the float32 answers, so accuracy is 1."""
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

here = pathlib.Path(__file__).parent
r = np.random.default_rng(3)


def save(name, nodes, constants, inputs, outputs):
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()]
    g = helper.make_graph(nodes, name, inputs, outputs, constants)
    m = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="trtship-testdata")
    onnx.checker.check_model(m, full_check=True)
    onnx.save(m, here / f"{name}.onnx")


def data(name, key, x):
    s = onnxruntime.InferenceSession(str(here / f"{name}.onnx"))
    answers = s.run(None, {key: x})[0]
    top = np.sort(answers, 1)
    sure = np.argsort(top[:, -2] - top[:, -1])[:80]  # ties would make accuracy a matter of luck
    np.savez_compressed(here / f"{name}_data.npz", **{key: x[sure], "labels": answers[sure].argmax(1).astype(np.int64)})


def value(name, *dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])


n = helper.make_node
save("cnn", [
    n("Conv", ["x", "w1", "b1"], ["c1"], name="/conv1", pads=[1, 1, 1, 1]), n("Relu", ["c1"], ["r1"], name="/relu1"),
    n("Conv", ["r1", "w2", "b2"], ["c2"], name="/conv2", pads=[1, 1, 1, 1]), n("Add", ["c2", "r1"], ["a"], name="/add"),
    n("Relu", ["a"], ["r2"], name="/relu2"), n("GlobalAveragePool", ["r2"], ["p"], name="/pool"), n("Flatten", ["p"], ["f"], name="/flat"),
    n("Gemm", ["f", "w3", "b3"], ["logits"], name="/fc", transB=1),
], {
    "w1": r.normal(0, 0.3, (8, 3, 3, 3)), "b1": r.normal(0, 0.1, 8), "w2": r.normal(0, 0.2, (8, 8, 3, 3)), "b2": r.normal(0, 0.1, 8),
    "w3": r.normal(0, 2, (5, 8)), "b3": np.zeros(5),
}, [value("x", 3, 8, 8)], [value("logits", 5)])
scale = r.uniform(0.2, 2, (300, 3, 1, 1))
data("cnn", "x", (r.normal(0, 1, (300, 3, 8, 8)) * scale).astype(np.float32))

# /big makes values beyond 65504 from a constant that fits, and /small brings them back.
save("overflow", [
    n("MatMul", ["x", "w1"], ["h"], name="/in"), n("Mul", ["h", "factor"], ["b"], name="/big"), n("Div", ["b", "factor"], ["s"], name="/small"),
    n("Relu", ["s"], ["q"], name="/relu"), n("MatMul", ["q", "w2"], ["logits"], name="/out"),
], {"w1": r.normal(0, 1, (6, 12)), "factor": np.array(40000), "w2": r.normal(0, 1, (12, 4))}, [value("x", 6)], [value("logits", 4)])
data("overflow", "x", r.normal(0, 1, (300, 6)).astype(np.float32))
