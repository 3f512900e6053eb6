"""Writes values.npz and expect.json: arrays, and the ranges that
onnxruntime.quantization chooses for them. Needs onnxruntime and numpy."""
import contextlib
import io
import json
import pathlib

import numpy as np
import onnxruntime
from onnxruntime.quantization.calibrate import HistogramCollector

here = pathlib.Path(__file__).parent
r = np.random.default_rng(7)
n = 20022  # no percentile falls between two values
arrays = {
    "normal": r.normal(0, 1, n),
    "relu": np.maximum(r.normal(0, 2, n), 0),
    "heavy": r.standard_t(3, n),
    "uniform": r.uniform(-3, 5, n),
    "one_sided": r.exponential(0.3, n),
    "outlier": np.append(r.normal(0, 1, n - 1), 60),
    "tiny": r.normal(0, 1e-6, n),
    "large": r.normal(0, 3e5, n),
    "zeros": np.zeros(256),
    "constant": np.full(256, 2.5),
}
arrays = {k: v.astype(np.float32) for k, v in arrays.items()}
np.savez_compressed(here / "values.npz", **arrays)


def choose(method, name, a, **options):
    c = HistogramCollector(method, options.get("symmetric", False), options["num_bins"], 128, options.get("percentile", 99.999), "same")
    with contextlib.redirect_stdout(io.StringIO()):
        c.collect({name: [a[: len(a) // 2], a[len(a) // 2 :]]})
        lo, hi = c.compute_collection_result()[name][:2]
    return [float(lo), float(hi)]


expect = {"onnxruntime": onnxruntime.__version__, "tensors": {}}
for name, a in arrays.items():
    e = {"minmax": [float(a.min()), float(a.max())]}
    for bins in (128, 512, 2048):
        e[f"entropy-{bins}"] = choose("entropy", name, a, num_bins=bins)
    for p in (99.0, 99.9, 99.99, 99.999):
        with contextlib.suppress(ValueError):  # a constant has no 2048 bins there
            e[f"percentile-{p}"] = choose("percentile", name, a, num_bins=2048, symmetric=True, percentile=p)
    expect["tensors"][name] = e
(here / "expect.json").write_text(json.dumps(expect, indent=1) + "\n")
