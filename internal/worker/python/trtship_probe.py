"""Methods that need no library: for doctor, and for tests of the child itself."""
import os
import platform
import sys


def probe(params, emit):
    """What the child sees of its surroundings."""
    return {
        "python": platform.python_version(), "executable": sys.executable, "path": sys.path,
        "environment": dict(sorted(os.environ.items())), "directory": os.getcwd(), "pid": os.getpid(),
    }


METHODS = {"worker.probe": probe}
