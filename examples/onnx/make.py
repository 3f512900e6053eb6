"""Write model.onnx: y = softmax(relu(x W1 + b1) W2 + b2). Needs the onnx package."""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)


def weight(name, *shape):
    return numpy_helper.from_array((random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32), name)


graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Identity", ["r"], ["i"], name="leftover"),  # for optimize to take away
        helper.make_node("Gemm", ["i", "w2", "b2"], ["z"], name="second"),
        helper.make_node("Softmax", ["z"], ["y"], name="softmax", axis=1),
    ],
    "classifier",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    [weight("w1", 16, 32), weight("b1", 32), weight("w2", 32, 4), weight("b2", 4)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model, full_check=True)
pathlib.Path(__file__).with_name("model.onnx").write_bytes(model.SerializeToString(deterministic=True))
