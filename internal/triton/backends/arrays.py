"""Arrays on their way from and to Triton, for the backends beside this file.

The stub of this server's python backend reads a numpy array as numpy 1 laid it
out. With numpy 2 it takes every array for empty, and gives arrays without
strides, in which every element is the first. DLPack does not go that way, but
knows no strings.
"""
import numpy as np
import triton_python_backend_utils as pb_utils

NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def refuse_strings(name):
    raise pb_utils.TritonModelException(
        f"'{name}' holds strings, which need numpy 1 with this server's python backend; numpy {np.__version__} is there")


def from_triton(tensor, data_type):
    """data_type is the configuration's: the stub cannot say a tensor's own to Python."""
    if not NUMPY_2:
        return tensor.as_numpy()
    if data_type == "TYPE_STRING":
        refuse_strings(tensor.name())
    value = np.from_dlpack(tensor)
    return value.astype(bool) if data_type == "TYPE_BOOL" else value


def to_triton(name, value):
    value = np.asarray(value)
    if value.dtype.kind in "USO":
        if NUMPY_2 and value.size:
            refuse_strings(name)
        return pb_utils.Tensor(name, value.astype(object))
    if not NUMPY_2 or not value.size:
        return pb_utils.Tensor(name, value)
    # DLPack takes no read-only arrays
    return pb_utils.Tensor.from_dlpack(name, value if value.flags.writeable and value.flags.c_contiguous else value.copy())
