"""Compares the table of TensorRT features, and every name that our modules use, with a real module.

    names.py FOLDER_OF_OUR_MODULES

Prints JSON. The module imports without a GPU; nothing is built or run.
"""
import json
import re
import sys

import tensorrt

sys.path.insert(0, sys.argv[1])
import trt_versions  # noqa: E402

# What the objects are that our variables hold, so that "engine.num_io_tensors"
# can be looked up without making one.
HOLDS = {
    "trt": tensorrt, "parser": tensorrt.OnnxParser, "network": tensorrt.INetworkDefinition, "builder": tensorrt.Builder,
    "config": tensorrt.IBuilderConfig, "profile": tensorrt.IOptimizationProfile, "engine": tensorrt.ICudaEngine,
    "runtime": tensorrt.Runtime, "context": tensorrt.IExecutionContext, "tensor": tensorrt.ITensor, "cache": tensorrt.ITimingCache,
    "e": tensorrt.ParserError,
}
# What our own class of an engine has.
OURS = {"driver", "device", "lanes", "tensors", "names", "inputs", "outputs", "infer", "load", "free", "reload", "load_ms", "memory", "engine", "logger", "trt", "params", "driver_free"}
# Names that some releases lack, with the feature that guards their use.
GUARDED = {
    "config.int8_calibrator": "calibrator", "config.progress_monitor": "progress_monitor", "trt.IProgressMonitor": "progress_monitor",
    "engine.device_memory_size": None, "engine.device_memory_size_v2": "device_memory_v2",
    "trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH": "explicit_batch", "trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED": "strongly_typed",
}


def missing(at, path):
    for part in path.split(".")[1:]:
        at = getattr(at, part, None)
        if at is None:
            return True
    return False


release = trt_versions.version(tensorrt)
features = {f: {"table": trt_versions.expected(f, release), "module": trt_versions.has(tensorrt, f)} for f in trt_versions.FEATURES}
used, absent = 0, []
for name in ("trt_build.py", "trt_engine.py", "trt_measure.py"):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as f:
        source = re.sub(r"\"trt\.\w+\"", "", f.read())  # names of our own methods
    source = re.sub(r"\b(?:self|lane|owner)\.", "", source)  # objects of ours that hold one of TensorRT's
    for path in sorted(set(re.findall(r"(?<![\w.])((?:%s)(?:\.[A-Za-z_]\w*)+)" % "|".join(HOLDS), source))):
        holder = path.split(".")[0]
        if holder == "engine" and path.split(".")[1] in OURS:
            continue  # of our own class
        if holder == "e" and path not in ("e.desc", "e.code", "e.node"):
            continue
        guard = next((g for k, g in GUARDED.items() if path == k or path.startswith(k + ".")), "")
        if guard is None or (guard and not trt_versions.has(tensorrt, guard)):
            continue
        used += 1
        if missing(HOLDS[holder], path):
            absent.append(f"{name}: {path}")
if trt_versions.has(tensorrt, "calibrator"):
    import trt_build

    for token, base in trt_build.CALIBRATORS.items():
        used += 1
        if not hasattr(tensorrt, base):
            absent.append(f"trt_build.py: {base} of {token}")
differ = [f for f, v in features.items() if v["table"] != v["module"]]
print(json.dumps({"tensorrt": tensorrt.__version__, "features": features, "names_used": used, "names_absent": absent, "table_differs": differ}, indent=1))
sys.exit(1 if absent or differ else 0)
