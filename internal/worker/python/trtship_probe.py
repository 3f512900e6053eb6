"""Methods that need no library: for doctor, and for tests of the child itself."""
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys


def probe(params, emit):
    """What the child sees of its surroundings."""
    return {
        "python": platform.python_version(), "executable": sys.executable, "path": sys.path,
        "environment": dict(sorted(os.environ.items())), "directory": os.getcwd(), "pid": os.getpid(),
    }


def package(params, emit):
    """The version of a package that is imported, whichever way Python finds it."""
    from trtship_errors import MISSING, Failure, first_line

    name = params["name"]
    if importlib.util.find_spec(name) is None:
        raise Failure(
            MISSING, "missing", f"{name} is not installed for {sys.executable}",
            hint="install it there, or name another interpreter with --python or TRTSHIP_PYTHON",
        )
    try:
        module = importlib.import_module(name)
    except Exception as err:  # whatever stops the import is the answer
        raise Failure(
            MISSING, "missing", f"{name} cannot be imported: {first_line(err)}",
            hint=f"install it again for {sys.executable}, or name another interpreter with --python or TRTSHIP_PYTHON",
        ) from err
    try:
        return {"version": importlib.metadata.version(name)}
    except importlib.metadata.PackageNotFoundError:
        return {"version": str(getattr(module, "__version__", ""))}


METHODS = {"worker.probe": probe, "worker.package": package}
