"""The half of the child that has TensorRT: its methods."""
import cuda
import trt_build
import trt_engine
import trt_installed
import trt_measure
import trt_versions
from trtship_errors import MISSING, Failure


def gpus(params, emit):
    """Devices that the driver shows, and what the loaded TensorRT can do."""
    driver = cuda.Driver()
    out = {"cuda_driver": driver.version(), "devices": [
        {"index": d.index, "name": d.name, "compute_capability": d.compute_capability, "memory_bytes": d.memory} for d in driver.devices()]}
    try:
        trt = trt_build.load_tensorrt()
        out["tensorrt"] = {"version": trt.__version__, "features": trt_versions.summary(trt)}
    except Exception as err:  # noqa: BLE001 - whatever stops the import is the answer
        out["tensorrt"] = {"error": f"{type(err).__name__}: {err}"}
    return out


def answered(method):
    """The method, to which a TensorRT without what every release has is no bug of ours."""

    def call(params, emit):
        try:
            return method(params, emit)
        except AttributeError as err:
            of = getattr(err.obj, "__name__", None) or type(err.obj).__module__
            if of.split(".")[0] != "tensorrt":
                raise
            trt = trt_build.load_tensorrt()
            raise Failure(
                MISSING, "missing", f"the tensorrt module, release {getattr(trt, '__version__', 'unknown')}, has no {err.name}", cause=err,
                hint=f"install TensorRT 8.6 or newer for this interpreter; the module is {getattr(trt, '__file__', 'of no file')}",
            ) from err

    return call


METHODS = {name: answered(method) for name, method in {
    "trt.gpus": gpus, "trt.installed": trt_installed.installed, "trt.start": trt_installed.start,
    "trt.build": trt_build.build,
    "trt.open": trt_engine.open_engine, "trt.close": trt_engine.close_engine, "trt.infer": trt_engine.infer,
    "trt.benchmark": trt_measure.benchmark, "trt.compare": trt_measure.compare,
}.items()}
