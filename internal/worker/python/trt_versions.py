"""What each TensorRT release can do, as data.

FEATURES maps a feature to (attribute path below the module, first release that
has it, first release without it or None). `has` asks the module that is loaded;
the table is what the tests compare with real modules.
"""

FEATURES = {
    "explicit_batch": ("NetworkDefinitionCreationFlag.EXPLICIT_BATCH", (8, 6), (11, 0)),
    "strongly_typed": ("NetworkDefinitionCreationFlag.STRONGLY_TYPED", (9, 1), None),
    "flag_fp16": ("BuilderFlag.FP16", (8, 6), (11, 0)),
    "flag_int8": ("BuilderFlag.INT8", (8, 6), (11, 0)),
    "flag_bf16": ("BuilderFlag.BF16", (9, 0), (11, 0)),
    "precision_constraints": ("BuilderFlag.OBEY_PRECISION_CONSTRAINTS", (8, 6), (11, 0)),
    "calibrator": ("IInt8EntropyCalibrator2", (8, 6), (11, 0)),
    "refit": ("BuilderFlag.REFIT", (8, 6), None),
    "strip_plan": ("BuilderFlag.STRIP_PLAN", (10, 0), None),
    "version_compatible": ("BuilderFlag.VERSION_COMPATIBLE", (8, 6), None),
    "cache_miss_error": ("BuilderFlag.ERROR_ON_TIMING_CACHE_MISS", (10, 0), None),
    "ampere_plus": ("HardwareCompatibilityLevel.AMPERE_PLUS", (8, 6), None),
    "same_compute_capability": ("HardwareCompatibilityLevel.SAME_COMPUTE_CAPABILITY", (10, 9), None),
    "progress_monitor": ("IProgressMonitor", (9, 0), None),
    "output_allocator": ("IOutputAllocator", (8, 6), None),
    "engine_inspector": ("EngineInspector", (8, 6), None),
    "device_memory_v2": ("ICudaEngine.device_memory_size_v2", (10, 1), None),
}


def version(trt):
    """The loaded release as a tuple, e.g. (10, 6, 0)."""
    return tuple(int(p) for p in trt.__version__.split(".")[:3] if p.isdigit())


def has(trt, feature):
    at = trt
    for part in FEATURES[feature][0].split("."):
        at = getattr(at, part, None)
        if at is None:
            return False
    return True


def expected(feature, release):
    """Whether the table says that a release (a tuple) has a feature."""
    _, since, until = FEATURES[feature]
    return release >= since and (until is None or release < until)


def summary(trt):
    """Features of the loaded module, by name."""
    return {f: has(trt, f) for f in sorted(FEATURES)}
