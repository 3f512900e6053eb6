"""The comparison of bench/compare, as a careful person writes it with NumPy.

Chunked in float64, quantiles with np.partition. Prints one line of JSON.

    python peer.py REF.npy GOT.npy ATOL RTOL
"""
import json
import sys
import time

import numpy as np

CHUNK = 1 << 22  # elements


def status(field):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def rows(ref, got, out):
    """Cosine along the first axis; top-1 and KL along the last."""
    r = ref.reshape(ref.shape[0], -1)
    g = got.reshape(got.shape[0], -1)
    dot = np.einsum("ij,ij->i", r, g)
    norms = np.sqrt(np.einsum("ij,ij->i", r, r)) * np.sqrt(np.einsum("ij,ij->i", g, g))
    defined = norms > 0
    if defined.any():
        out["cosine_min"] = min(out["cosine_min"], float((dot[defined] / norms[defined]).min()))
    if ref.ndim < 2 or ref.shape[-1] < 2:
        return
    r = ref.reshape(-1, ref.shape[-1])
    g = got.reshape(-1, ref.shape[-1])
    out["agree"] += int((r.argmax(1) == g.argmax(1)).sum())
    out["rows"] += len(r)
    lr = r - r.max(1, keepdims=True)
    lg = g - g.max(1, keepdims=True)
    er = np.exp(lr)
    sr = er.sum(1, keepdims=True)
    lr -= np.log(sr)
    lg -= np.log(np.exp(lg).sum(1, keepdims=True))
    out["kl"] += float((er / sr * (lr - lg)).sum())


def compare(ref, got, atol, rtol):
    out = {"cosine_min": np.inf, "agree": 0, "rows": 0, "kl": 0.0}
    n = ref.size
    total = squares = largest = relative = peak = 0.0
    breaches = nan_r = nan_g = inf_r = inf_g = 0
    diffs = np.empty(n, np.float32)
    per = max(1, CHUNK // max(1, n // ref.shape[0]))
    at = 0
    for lo in range(0, ref.shape[0], per):
        r = ref[lo:lo + per].astype(np.float64)
        g = got[lo:lo + per].astype(np.float64)
        d = np.abs(g - r)
        a = np.abs(r)
        nan_r += int(np.isnan(r).sum())
        nan_g += int(np.isnan(g).sum())
        inf_r += int(np.isinf(r).sum())
        inf_g += int(np.isinf(g).sum())
        breaches += int((d > atol + rtol * a).sum())
        total += float(d.sum())
        squares += float((d * d).sum())
        largest = max(largest, float(d.max()))
        peak = max(peak, float(a.max()))
        nz = a > 0
        relative = max(relative, float((d[nz] / a[nz]).max()))
        diffs[at:at + d.size] = d.ravel()
        at += d.size
        rows(r, g, out)
    names = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    ranks = sorted({int(np.floor(q * (n - 1))) for q in names.values()} | {min(n - 1, int(np.floor(q * (n - 1))) + 1) for q in names.values()})
    diffs.partition(ranks)
    result = {"max_abs": largest, "mean_abs": total / n, "rmse": float(np.sqrt(squares / n)), "max_rel": relative,
              "breaches": breaches, "nan": [nan_r, nan_g], "inf": [inf_r, inf_g], "cosine_min": out["cosine_min"]}
    result["psnr_db"] = float(20 * np.log10(peak / result["rmse"])) if result["rmse"] else None
    for name, q in names.items():
        p = q * (n - 1)
        lo = int(np.floor(p))
        hi = min(n - 1, lo + 1)
        result[name] = float(diffs[lo] + (p - lo) * (float(diffs[hi]) - float(diffs[lo])))
    if out["rows"]:
        result["top1"] = out["agree"] / out["rows"]
        result["kl"] = out["kl"] / out["rows"]
    return result


def main():
    ref, got = np.load(sys.argv[1]), np.load(sys.argv[2])
    atol, rtol = float(sys.argv[3]), float(sys.argv[4])
    compare(ref[:1], got[:1], atol, rtol)  # so that no first use is timed
    before = status("VmRSS")
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass
    start = time.perf_counter()
    result = compare(ref, got, atol, rtol)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "above_inputs_bytes": status("VmHWM") - before, "metrics": result, "numpy": np.__version__}))


if __name__ == "__main__":
    main()
