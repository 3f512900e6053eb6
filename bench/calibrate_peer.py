"""Calibrates with onnxruntime.quantization and prints what it chose, how long
it took and how much memory it needed.

usage: calibrate_peer.py MODEL DATA METHOD INDEXES [BINS]

INDEXES are the samples to take, with commas.

DATA is an .npy file (for a model with one input) or an .npz file. The last line
on stdout is JSON: seconds, peak_rss_bytes, ranges by tensor.
"""
import json
import os
import resource
import sys
import tempfile
import time

import numpy as np
import onnx
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

METHODS = {"minmax": CalibrationMethod.MinMax, "entropy-ort": CalibrationMethod.Entropy, "percentile": CalibrationMethod.Percentile}


class Reader(CalibrationDataReader):
    def __init__(self, model, path, indexes):
        names = [i.name for i in onnx.load(model, load_external_data=False).graph.input]
        if path.endswith(".npz"):
            z = np.load(path)
            self.data = {n: z[n] for n in names}
        else:
            self.data = {names[0]: np.load(path, mmap_mode="r")}
        self.indexes, self.at = indexes, 0

    def get_next(self):
        if self.at == len(self.indexes):
            return None
        i = self.indexes[self.at]
        self.at += 1
        return {n: np.ascontiguousarray(a[i : i + 1]) for n, a in self.data.items()}


def main():
    model, data, method, indexes = sys.argv[1:4] + [[int(i) for i in sys.argv[4].split(",")]]
    extra = {"symmetric": False}
    if method == "percentile":
        extra = {"symmetric": True, "percentile": 99.99}
    if len(sys.argv) > 5:
        extra["num_bins"] = int(sys.argv[5])
    if os.environ.get("STRIDE"):
        extra["max_intermediate_outputs"] = int(os.environ["STRIDE"])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.monotonic()
        c = create_calibrator(model, [], os.path.join(scratch, "augmented.onnx"), METHODS[method], extra_options=extra)
        c.collect_data(Reader(model, data, indexes))
        ranges = c.compute_data()
        seconds = time.monotonic() - start
    out = {k: [float(np.asarray(v.range_value[0]).reshape(-1)[0]), float(np.asarray(v.range_value[1]).reshape(-1)[0])] for k, v in ranges.items()}
    print()
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "ranges": out}))


if __name__ == "__main__":
    main()
