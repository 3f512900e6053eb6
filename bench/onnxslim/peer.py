"""Optimizes models with onnxslim, in one warm process: one small model first,
then each one several times. Prints a JSON line for each model.

usage: peer.py REPEATS FOLDER MODEL...
"""
import importlib.metadata
import json
import os
import sys
import time

import onnx
import onnxslim

repeats, folder = int(sys.argv[1]), sys.argv[2]


def once(path, target):
    if os.path.exists(target):
        os.remove(target)
    start = time.perf_counter()
    model = onnx.load(path)
    loaded = time.perf_counter()
    slim = onnxslim.slim(model)
    done = time.perf_counter()
    onnx.save(slim, target)
    return {"load": loaded - start, "optimize": done - loaded, "save": time.perf_counter() - done}, len(slim.graph.node)


print(json.dumps({p: importlib.metadata.version(p) for p in ("onnxslim", "onnx", "onnxruntime", "torch")}), flush=True)
once(sys.argv[3], os.path.join(folder, "warm.onnx"))
for path in sys.argv[3:]:
    target = os.path.join(folder, os.path.basename(path))
    runs = []
    for _ in range(repeats):
        times, nodes = once(path, target)
        runs.append(times)
    print(json.dumps({"model": os.path.basename(path), "runs": runs, "nodes": nodes}), flush=True)
