"""Which TensorRT an interpreter has, whether it can be imported, and what it asks of driver and GPU."""
import ctypes
import glob
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys

import trt_build
import trt_versions
from trtship_errors import MISSING, Failure, first_line

# The oldest release of the table of features.
OLDEST = min(since for _, since, _ in trt_versions.FEATURES.values())

# The first release that asks for a compute capability, and which, by NVIDIA's support
# matrices; lower ones are refused only where that is certain.
COMPUTE_CAPABILITY = (((8, 6), (5, 0)), ((10, 1), (7, 0)), ((10, 5), (7, 5)))

# The least Linux driver for a major version of CUDA, by CUDA's release notes.
DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def dotted(numbers):
    return ".".join(str(n) for n in numbers)


def load():
    """The module; whatever stops its import is a failure with that cause."""
    if "tensorrt" not in sys.modules and importlib.util.find_spec("tensorrt") is None:
        raise Failure(
            MISSING, "missing", f"tensorrt is not installed for {sys.executable}",
            hint="install it there, or name another interpreter with --python or TRTSHIP_PYTHON",
        )
    try:
        return importlib.import_module("tensorrt")
    except Exception as err:  # noqa: BLE001 - whatever stops the import is the answer
        raise Failure(
            MISSING, "missing", f"tensorrt cannot be imported: {first_line(err)}",
            hint="install TensorRT's Python bindings and the libraries of the same release for this interpreter",
        ) from err


def release(text):
    """The numbers of a version, or None if it does not begin with two."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def cuda_major(version):
    """The CUDA that the installed packages of this release are for; 0 if they do not say."""
    majors = set()
    for d in importlib.metadata.distributions():
        name = re.fullmatch(r"tensorrt[-_]cu(\d+)([-_](bindings|libs))?", (d.metadata["Name"] or "").lower())
        if name and version.startswith(d.version.split(".post")[0]):
            majors.add(int(name[1]))
    return majors.pop() if len(majors) == 1 else 0


def builder_resource(version):
    """Why the builder would not find its kernels, which lie in libraries of their own; '' if it would.

    Images that only run engines leave them out: they are larger than the rest.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
        loaded = {line.split(None, 5)[5].strip() for line in f if "/libnvinfer.so" in line}
    if not loaded:
        return ""  # it is linked in another way, and nothing is known
    folders = [os.path.dirname(path) for path in sorted(loaded)] + os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if any(glob.glob(os.path.join(glob.escape(f), "libnvinfer_builder_resource*")) for f in folders if f):
        return ""
    try:
        ctypes.CDLL("libnvinfer_builder_resource.so." + ".".join(version.split(".")[:3]))
        return ""
    except OSError:
        return f"libnvinfer_builder_resource is not beside {sorted(loaded)[0]}"


def start(params, emit):
    """Starts the runtime on the GPU that this process sees; `refused` says why it does not."""
    trt = load()
    logger = trt_build.make_logger(trt)
    refused = ""
    try:
        if trt.Runtime(logger) is None:
            refused = "; ".join(logger.errors) or "no reason given"
    except Exception as err:  # noqa: BLE001 - the bindings raise TypeError
        refused = "; ".join(logger.errors or list(logger.recent)[-3:]) or first_line(err)
    return {"version": str(trt.__version__), "refused": refused}


def installed(params, emit):
    """The release and what it needs."""
    trt = load()
    version = str(getattr(trt, "__version__", ""))
    out = {"version": version, "oldest": dotted(OLDEST), "python": sys.executable}
    numbers = release(version)
    if numbers is None or numbers < OLDEST:
        return {**out, "known": False, "readable": numbers is not None}
    least = [cc for since, cc in COMPUTE_CAPABILITY if since <= numbers]
    cuda = cuda_major(version)
    return {
        **out, "known": True, "readable": True, "compute_capability": dotted(least[-1]), "cuda": cuda, "driver": DRIVER.get(cuda, ""),
        "builder": builder_resource(version),
    }
