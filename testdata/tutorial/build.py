"""Make the models of this folder: MNIST-like classifiers with the tutorial's
names, small enough to be kept here. Needs the onnx package."""

import os

import numpy as np
import onnx
from onnx import TensorProto as T, helper as h, numpy_helper as n

here = os.path.dirname(os.path.abspath(__file__))


def model(path, seed, batch="batch_size", source="INPUT__0", result="OUTPUT__0"):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((49, 10)).astype(np.float32)
    bias = rng.standard_normal(10).astype(np.float32)
    graph = h.make_graph(
        [
            h.make_node("AveragePool", [source], ["pooled"], "/pool", kernel_shape=[4, 4], strides=[4, 4]),
            h.make_node("Flatten", ["pooled"], ["flat"], "/flatten", axis=1),
            h.make_node("Gemm", ["flat", "weights", "bias"], ["scores"], "/fc"),
            h.make_node("LogSoftmax", ["scores"], [result], "/log_softmax", axis=1),
        ],
        "mnist",
        [h.make_tensor_value_info(source, T.FLOAT, [batch, 1, 28, 28])],
        [h.make_tensor_value_info(result, T.FLOAT, [batch, 10])],
        [n.from_array(weights, "weights"), n.from_array(bias, "bias")],
    )
    m = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(m, full_check=True)
    path = os.path.join(here, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    onnx.save(m, path)


for folder in ("printed/mnist/1", "quoted/mnist/1", "moved/mnist/1", "policy/mnist/1", "corrected/mnist/1", "zero/mnist/0"):
    model(folder + "/model.onnx", 1)
model("corrected_v2/mnist/2/model.onnx", 2)
model("fixed_batch/mnist/1/model.onnx", 1, batch=1)
model("other_names/mnist/1/model.onnx", 1, source="input.1", result="23")
model("no_version/mnist/model.onnx", 1)
np.save(os.path.join(here, "image.npy"), (np.arange(784, dtype=np.float32) % 17 / 17).reshape(1, 1, 28, 28))
