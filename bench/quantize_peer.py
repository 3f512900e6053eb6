"""Quantizes with onnxruntime.quantization (Q/DQ, symmetric int8, one scale a
channel of a weight) and measures accuracy on labelled data.

usage: quantize_peer.py MODEL DATA INDEXES METHOD OURS.onnx [TEST.npz]

The last line on stdout is JSON: seconds of the whole quantization and, with
TEST.npz, the accuracy of the float model, of OURS and of the peer's model.
"""
import json
import os
import sys
import tempfile
import time

import numpy as np
import onnxruntime as ort
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from calibrate_peer import METHODS, Reader  # noqa: E402


def accuracy(path, x, labels):
    o = ort.SessionOptions()
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    s = ort.InferenceSession(path, o, providers=["CPUExecutionProvider"])
    out = s.run(None, {s.get_inputs()[0].name: x})[0]
    return float((out.argmax(1) == labels).mean())


def main():
    model, data, indexes, method, ours = sys.argv[1:6]
    with tempfile.TemporaryDirectory() as scratch:
        theirs = os.path.join(scratch, "peer.onnx")
        start = time.monotonic()
        quantize_static(
            model, theirs, Reader(model, data, [int(i) for i in indexes.split(",")]), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QInt8, weight_type=QuantType.QInt8, calibrate_method=METHODS.get(method, CalibrationMethod.Entropy),
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True})
        result = {"seconds": time.monotonic() - start}
        if len(sys.argv) > 6:
            z = np.load(sys.argv[6])
            x = z[[k for k in z.files if k != "labels"][0]]
            result |= {k: accuracy(p, x, z["labels"]) for k, p in (("float", model), ("trtship", ours), ("peer", theirs))}
            result["images"] = len(x)
    print()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
