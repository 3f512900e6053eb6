"""Builds TensorRT plans and describes them. Needs only tensorrt and libcuda."""
import collections
import json
import os
import re
import time

import cuda
import trt_versions
from trtship_errors import MISSING, Failure, first_line


class BuildError(RuntimeError):
    """A build that TensorRT refused; `details` go into the reply."""

    def __init__(self, message, **details):
        super().__init__(message)
        self.details = details


def load_tensorrt():
    """The module, imported late: the torch half must not need it."""
    try:
        import tensorrt
    except Exception as err:  # an ImportError, or what its libraries raise when they are loaded
        raise Failure(
            MISSING, "missing", f"tensorrt cannot be imported: {first_line(err)}", cause=err,
            hint="install TensorRT's Python bindings and libraries for this interpreter; trtship doctor shows what is there",
        ) from err
    return tensorrt


def make_logger(trt):
    """A logger that groups equal messages and passes errors on at once."""

    class Logger(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)
            self.begin(lambda event: None)

        def begin(self, emit):
            """Forgets what was logged before; from now on errors go to `emit`."""
            self.emit, self.counts, self.errors = emit, collections.Counter(), []
            self.recent = collections.deque(maxlen=12)  # lines of any severity, for a build that fails without a reason

        def log(self, severity, message):
            self.recent.append(message)
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(message)
                self.emit({"event": "log", "severity": "error", "text": message})
            elif severity == trt.ILogger.Severity.WARNING:
                self.counts[re.sub(r"\d+", "N", message)] += 1

        def warnings(self):
            return [{"text": text, "count": n} for text, n in self.counts.most_common()]

    return Logger()


def start(trt, what, logger, driver):
    """trt.Builder or trt.Runtime: the first that TensorRT does on the GPU.

    Where it cannot, pybind11 says only that its factory function returned nullptr.
    """
    made = getattr(trt, what)
    try:
        return made(logger)
    except Exception as err:
        details = [("TensorRT said", "\n".join(logger.recent))] if logger.recent else []
        raise Failure(
            MISSING, "missing", f"TensorRT {trt.__version__} cannot start its {what} with this driver, which is of CUDA {driver.version()}: {first_line(err)}",
            cause=err, details=details, hint="install a driver that is new enough for this TensorRT, or a TensorRT for this driver; trtship doctor shows both",
        ) from err


BUILDERS = {}  # (logger, builder) by device: a builder takes seconds to load its kernels


def builder_for(trt, device, emit):
    if device.index not in BUILDERS:
        logger = make_logger(trt)
        BUILDERS[device.index] = logger, start(trt, "Builder", logger, device.driver)
    logger, builder = BUILDERS[device.index]
    builder.reset()
    logger.begin(emit)
    return logger, builder


def make_monitor(trt, emit, cancelled):
    """Reports the builder's phases and stops the build when `cancelled` says so."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self):
            trt.IProgressMonitor.__init__(self)
            self.top = None

        def phase_start(self, phase_name, parent_phase, num_steps):
            if parent_phase is None:
                self.top = phase_name
                emit({"event": "progress", "done": 0, "total": num_steps, "label": phase_name})

        def phase_finish(self, phase_name):
            if phase_name == self.top:
                self.top = None

        def step_complete(self, phase_name, step):
            if phase_name == self.top:
                emit({"event": "progress", "done": step + 1, "total": 0, "label": phase_name})
            return not cancelled()

    return Monitor()


# The class that TensorRT wants for the algorithm in a cache's first line. With
# another one it passes the cache over and calibrates anew.
CALIBRATORS = {
    "EntropyCalibration2": "IInt8EntropyCalibrator2", "EntropyCalibration": "IInt8EntropyCalibrator",
    "MinMaxCalibration": "IInt8MinMaxCalibrator",
}


def make_calibrator(trt, path):
    """A calibrator that has nothing but a cache: a miss is an error, never a calibration."""
    with open(path, "rb") as f:
        text = f.read()
    header = text.split(b"\n", 1)[0].decode("ascii", "replace").strip()
    base = CALIBRATORS.get(header.rsplit("-", 1)[-1])
    if base is None:
        raise BuildError(f"the calibration cache begins with {header!r}: known are {', '.join(CALIBRATORS)}")

    class CacheOnly(getattr(trt, base)):
        def __init__(self):
            getattr(trt, base).__init__(self)
            self.reads, self.header, self.refused = 0, header, False

        def get_batch_size(self):
            return 1

        def get_batch(self, names):
            self.refused = True  # TensorRT calibrates: it did not take the cache
            return None

        def read_calibration_cache(self):
            self.reads += 1
            return text

        def write_calibration_cache(self, data):
            return None

    return CacheOnly()


def parse(trt, logger, network, path):
    parser = trt.OnnxParser(network, logger)
    if parser.parse_from_file(path):
        return parser
    raise BuildError("the ONNX parser refused the graph", parser_errors=parser_errors(parser), logged=logger.errors[-20:])


def parser_errors(parser):
    out = []
    for i in range(parser.num_errors):
        e = parser.get_error(i)
        row = {"text": e.desc(), "code": str(e.code()).rsplit(".", 1)[-1], "index": e.node()}
        for key in ("node_name", "node_operator"):
            if hasattr(e, key):
                row[key] = getattr(e, key)()
        out.append(row)
    return out


def network_flags(trt, typing):
    flags = 0
    if trt_versions.has(trt, "explicit_batch") and trt_versions.version(trt) < (10, 0):
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    if typing == "strong" and trt_versions.has(trt, "strongly_typed"):
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    return flags


def flag_feature(precision):
    return {"fp16": "flag_fp16", "bf16": "flag_bf16", "int8": "flag_int8"}[precision]


def set_precision_flags(trt, config, params):
    """Builder flags, for weakly typed networks and for releases without strong typing."""
    precision = params["precision"]
    wanted = [] if precision == "fp32" else [precision]
    if precision == "int8" and params.get("int8_fp16_fallback"):
        wanted.append("fp16")
    for p in wanted:
        feature = flag_feature(p)
        if not trt_versions.has(trt, feature):
            raise BuildError(f"TensorRT {trt.__version__} has no {p} flag: {p} must be in the graph (tensorrt.typing: strong)")
        config.set_flag(getattr(trt.BuilderFlag, p.upper()))


# Layers that cost the time of a network; the rest follows their types.
CONSTRAINED = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM")


def constrain_layers(trt, config, network, params):
    """Asks for the precision in the heavy layers, where weak typing would let speed alone decide.

    Returns how many layers were asked, or None where nothing was asked for.
    """
    how = params.get("precision_constraints") or "none"
    if how == "none" or params["precision"] == "fp32":
        return None
    if not trt_versions.has(trt, "precision_constraints"):
        raise BuildError(f"TensorRT {trt.__version__} has no precision constraints, which tensorrt.precision_constraints: {how} needs")
    config.set_flag(getattr(trt.BuilderFlag, how.upper() + "_PRECISION_CONSTRAINTS"))
    wanted = {"fp16": "HALF", "bf16": "BF16", "int8": "INT8"}[params["precision"]]
    kinds = [getattr(trt.LayerType, k) for k in CONSTRAINED]
    asked = 0
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if layer.type in kinds and layer.get_output(0).dtype == trt.DataType.FLOAT:
            layer.precision = getattr(trt.DataType, wanted)
            asked += 1
    return asked


def configure(trt, builder, network, params):
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, params["workspace_mb"] << 20)
    for name, mib in params.get("memory_pools_mb", {}).items():
        pool = getattr(trt.MemoryPoolType, name.upper(), None)
        if pool is None:
            raise BuildError(f"TensorRT {trt.__version__} has no memory pool {name!r}")
        config.set_memory_pool_limit(pool, mib << 20)
    config.builder_optimization_level = params["optimization_level"]
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if not params.get("tf32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # it is set by default, and a float32 engine would not be one
    for key, flag in (("refittable", "REFIT"), ("strip_weights", "STRIP_PLAN"), ("version_compatible", "VERSION_COMPATIBLE")):
        if params.get(key):
            if not hasattr(trt.BuilderFlag, flag):
                raise BuildError(f"TensorRT {trt.__version__} has no {flag}, which tensorrt.{key} needs")
            config.set_flag(getattr(trt.BuilderFlag, flag))
    level = params.get("hardware_compatibility", "none")
    if level != "none":
        value = getattr(trt.HardwareCompatibilityLevel, level.upper(), None)
        if value is None:
            raise BuildError(f"TensorRT {trt.__version__} has no hardware compatibility level {level}")
        config.hardware_compatibility_level = value
    for profile in params.get("profiles", []):
        config.add_optimization_profile(make_profile(builder, network, profile))
    return config


def make_profile(builder, network, ranges):
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        r = ranges.get(tensor.name)
        if r is None:
            if -1 in tuple(tensor.shape):
                raise BuildError(f"input {tensor.name} has dynamic dimensions {list(tensor.shape)} and no profile")
            r = {"min": list(tensor.shape), "opt": list(tensor.shape), "max": list(tensor.shape)}
        setter = profile.set_shape_input if tensor.is_shape_tensor else profile.set_shape
        setter(tensor.name, r["min"], r["opt"], r["max"])
    return profile


def attach_timing_cache(config, path):
    data = b""
    if path and os.path.exists(path):
        with open(path, "rb") as f:
            data = f.read()
    cache = config.create_timing_cache(data)
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache, len(data)


def build(params, emit, cancelled=lambda: False):
    """Builds one plan.

    params: onnx, plan (output path), precision, typing, profiles (list of
    {input: {min, opt, max}}), workspace_mb, optimization_level, device and the
    other keys of the tensorrt section; calibration_cache for weak INT8;
    timing_cache_in and timing_cache_out are paths or absent.
    Returns the engine's description.
    """
    trt = load_tensorrt()
    device = cuda.Driver().device(params.get("device", "0")).activate()
    logger, builder = builder_for(trt, device, emit)
    typing = params.get("typing", "strong")
    network = builder.create_network(network_flags(trt, typing))
    parser = parse(trt, logger, network, params["onnx"])
    emit({"event": "reached", "what": "parsed"})
    config = configure(trt, builder, network, params)
    calibrator = constrained = None
    if typing == "weak" or not trt_versions.has(trt, "strongly_typed"):
        set_precision_flags(trt, config, params)
        constrained = constrain_layers(trt, config, network, params)
        if params["precision"] == "int8" and params.get("calibration_cache"):
            if not trt_versions.has(trt, "calibrator"):
                raise BuildError(f"TensorRT {trt.__version__} has no calibrators: int8 needs Q/DQ in the graph (tensorrt.typing: strong)")
            calibrator = make_calibrator(trt, params["calibration_cache"])
            config.int8_calibrator = calibrator
    if trt_versions.has(trt, "progress_monitor"):
        config.progress_monitor = make_monitor(trt, emit, cancelled)
    cache, cache_in = attach_timing_cache(config, params.get("timing_cache_in"))
    started = time.monotonic()
    plan = builder.build_serialized_network(network, config)
    seconds = time.monotonic() - started
    if calibrator and calibrator.refused:
        raise BuildError(
            f"TensorRT {trt.__version__} did not take the calibration cache, which begins with {calibrator.header!r}", last_lines=list(logger.recent))
    if plan is None:
        if cancelled():
            raise BuildError("the build was cancelled")
        raise BuildError("TensorRT could not build the engine", logged=logger.errors[-20:], warnings=logger.warnings(), last_lines=list(logger.recent))
    with open(params["plan"], "wb") as f:
        f.write(plan)
    serialized_cache = bytes(cache.serialize())
    if params.get("timing_cache_out"):
        with open(params["timing_cache_out"], "wb") as f:
            f.write(serialized_cache)
    description = describe_plan(trt, logger, params["plan"], device)
    description.update(
        precision=params["precision"],
        typing=typing if trt_versions.has(trt, "strongly_typed") else "weak",
        build_seconds=seconds,
        workspace_mb=params["workspace_mb"],
        fast_fp16=getattr(builder, "platform_has_fast_fp16", None),
        fast_int8=getattr(builder, "platform_has_fast_int8", None),
        timing_cache={"bytes_in": cache_in, "bytes_out": len(serialized_cache), "grew": len(serialized_cache) > cache_in},
        calibration_cache_reads=calibrator.reads if calibrator else None,
        constrained_layers=constrained,
        warnings=logger.warnings(),
        hardware_compatibility=params.get("hardware_compatibility", "none"),
        version_compatible=bool(params.get("version_compatible")),
    )
    del parser
    return description


DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool", "UINT8": "uint8", "FP8": "float8e4m3fn", "INT4": "int4",
}


def dtype_name(dtype):
    return DTYPES.get(str(dtype).rsplit(".", 1)[-1], str(dtype))


def describe_plan(trt, logger, path, device):
    """The plan's own tensors, profiles, layers and sizes, read by loading it."""
    with open(path, "rb") as f:
        data = f.read()
    runtime = start(trt, "Runtime", logger, device.driver)
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise BuildError("the new plan cannot be loaded", logged=logger.errors[-20:])
    tensors = [tensor_row(trt, engine, engine.get_tensor_name(i)) for i in range(engine.num_io_tensors)]
    return {
        "tensorrt": trt.__version__,
        "gpu": device.name,
        "compute_capability": device.compute_capability,
        "cuda_driver": device.driver.version(),
        "plan_bytes": len(data),
        "device_memory_bytes": engine.device_memory_size_v2 if trt_versions.has(trt, "device_memory_v2") else engine.device_memory_size,
        "tensors": tensors,
        "profiles": [profile_row(trt, engine, tensors, p) for p in range(engine.num_optimization_profiles)],
        "layers": layer_rows(trt, engine),
    }


def tensor_row(trt, engine, name):
    mode = "input" if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else "output"
    return {
        "name": name, "io": mode, "dtype": dtype_name(engine.get_tensor_dtype(name)),
        "dims": list(engine.get_tensor_shape(name)), "format": engine.get_tensor_format_desc(name),
        "shape_tensor": bool(engine.is_shape_inference_io(name)),
        "location": str(engine.get_tensor_location(name)).rsplit(".", 1)[-1].lower(),
    }


def profile_row(trt, engine, tensors, index):
    row = {}
    for t in tensors:
        if t["io"] != "input":
            continue
        if t["shape_tensor"] and t["location"] == "host":
            continue
        low, opt, high = engine.get_tensor_profile_shape(t["name"], index)
        row[t["name"]] = {"min": list(low), "opt": list(opt), "max": list(high)}
    return row


def layer_rows(trt, engine):
    """Layers by the type of their outputs, from the engine inspector."""
    if not trt_versions.has(trt, "engine_inspector"):
        return []
    info = json.loads(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    rows = []
    for layer in info.get("Layers", []):
        if not isinstance(layer, dict):
            rows.append({"name": str(layer), "type": "", "precision": ""})
            continue
        rows.append({
            "name": layer.get("Name", ""), "type": layer.get("LayerType", ""), "precision": layer_precision(layer),
            "onnx": re.findall(r"\[ONNX Layer: ([^\]]+)\]", layer.get("Metadata", "") or ""),
        })
    return rows


FORMATS = (("FP8", "fp8"), ("Int8", "int8"), ("BFloat16", "bf16"), ("BF16", "bf16"), ("Half", "fp16"), ("FP16", "fp16"), ("Float", "fp32"), ("FP32", "fp32"), ("Int64", "int64"), ("Int32", "int32"), ("Bool", "bool"))


def layer_precision(layer):
    """A layer computes in the narrowest type that it reads."""
    seen = {f for t in layer.get("Inputs", []) + layer.get("Outputs", []) for word, f in FORMATS if word.lower() in str(t.get("Format/Datatype", t.get("Format", ""))).lower()[:12]}
    for f in ("int8", "fp8", "fp16", "bf16", "fp32", "int64", "int32", "bool"):
        if f in seen:
            return f
    return ""
