"""The CUDA driver API through ctypes: devices, memory, streams, events, graphs.

Only libcuda is needed. Sizes are bytes, times milliseconds. Every call that
fails raises CudaError with the driver's own name for the fault.
"""
import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from trtship_errors import MISSING, Failure

NO_DRIVER = "run trtship doctor: it names what keeps the NVIDIA driver from working"

CAPTURE_THREAD_LOCAL = 1
EVENT_DEFAULT = 0
STREAM_NON_BLOCKING = 1


class CudaError(RuntimeError):
    """A driver call that failed."""

    details = {}  # reported as a fault of the build or the engine, not of ours


class Driver:
    """libcuda, loaded and initialised."""

    def __init__(self):
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            raise Failure(MISSING, "missing", f"libcuda.so.1 cannot be loaded: {err}", hint=NO_DRIVER) from err
        try:
            self.call("cuInit", 0)
        except CudaError as err:
            raise Failure(MISSING, "missing", str(err), hint=NO_DRIVER) from err

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            text = c_char_p()
            self.lib.cuGetErrorName(status, byref(text))
            reason = c_char_p()
            self.lib.cuGetErrorString(status, byref(reason))
            raise CudaError(f"{name}: {(text.value or b'?').decode()} ({(reason.value or b'?').decode()})")

    def version(self):
        """The CUDA version of the driver, e.g. "13.0"."""
        v = c_int()
        self.call("cuDriverGetVersion", byref(v))
        return f"{v.value // 1000}.{v.value % 1000 // 10}"

    def devices(self):
        n = c_int()
        self.call("cuDeviceGetCount", byref(n))
        return [Device(self, i) for i in range(n.value)]

    def device(self, index):
        """A device by its index among those that CUDA_VISIBLE_DEVICES leaves: who starts
        this process chooses the GPU."""
        devices = self.devices()
        if int(index) >= len(devices):
            raise Failure(MISSING, "missing", f"GPU {index} asked for, {len(devices)} found", hint="set tensorrt.device")
        return devices[int(index)]


class Device:
    """One GPU; `activate` makes its primary context current in this thread."""

    ATTRIBUTES = {"major": 75, "minor": 76, "multiprocessors": 16}

    def __init__(self, driver, index):
        self.driver, self.index = driver, index
        self.handle = c_int()
        driver.call("cuDeviceGet", byref(self.handle), index)
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, 256, self.handle)
        self.name = name.value.decode()
        raw = (ctypes.c_ubyte * 16)()
        driver.call("cuDeviceGetUuid", raw, self.handle)
        h = bytes(raw).hex()
        self.uuid = "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
        total = c_size_t()
        driver.call("cuDeviceTotalMem_v2", byref(total), self.handle)
        self.memory = total.value
        self.compute_capability = f"{self.attribute('major')}.{self.attribute('minor')}"

    def attribute(self, name):
        v = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(v), self.ATTRIBUTES[name], self.handle)
        return v.value

    def activate(self):
        ctx = c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", byref(ctx), self.handle)
        self.driver.call("cuCtxSetCurrent", ctx)
        return self

    def free_memory(self):
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value


class Buffer:
    """Memory on the device or, pinned, on the host; at least one byte."""

    def __init__(self, driver, size, host=False):
        self.driver, self.size, self.host = driver, size, host
        if host:
            p = c_void_p()
            driver.call("cuMemAllocHost_v2", byref(p), c_size_t(max(size, 1)))
            self.address = p.value
        else:
            p = c_uint64()
            driver.call("cuMemAlloc_v2", byref(p), c_size_t(max(size, 1)))
            self.address = p.value

    def write(self, data):
        """Copies bytes into the buffer; they have arrived when it returns.

        A copy from pageable memory returns when its bytes are staged. Our streams
        do not wait for the default stream, so without the second call a kernel
        could read what was there before.
        """
        if self.host:
            ctypes.memmove(self.address, data, len(data))
        elif data:
            self.driver.call("cuMemcpyHtoD_v2", c_uint64(self.address), data, c_size_t(len(data)))
            self.driver.call("cuStreamSynchronize", None)

    def read(self, size):
        if self.host:
            return ctypes.string_at(self.address, size)
        out = ctypes.create_string_buffer(max(size, 1))
        if size:
            self.driver.call("cuMemcpyDtoH_v2", out, c_uint64(self.address), c_size_t(size))
        return out.raw[:size]

    def free(self):
        if self.address:
            if self.host:
                self.driver.call("cuMemFreeHost", c_void_p(self.address))
            else:
                self.driver.call("cuMemFree_v2", c_uint64(self.address))
            self.address = 0


class Event:
    def __init__(self, driver):
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuEventCreate", byref(self.handle), c_uint(EVENT_DEFAULT))
        self._record = driver.lib.cuEventRecord

    def record(self, stream):
        if self._record(self.handle, stream.handle):
            raise CudaError("cuEventRecord failed")

    def synchronize(self):
        self.driver.call("cuEventSynchronize", self.handle)

    def since(self, earlier):
        """Milliseconds from `earlier` to this event; both must have happened."""
        ms = c_float()
        self.driver.call("cuEventElapsedTime", byref(ms), earlier.handle, self.handle)
        return ms.value

    def free(self):
        if self.handle:
            self.driver.call("cuEventDestroy_v2", self.handle)
            self.handle = None


class Stream:
    def __init__(self, driver):
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuStreamCreate", byref(self.handle), c_uint(STREAM_NON_BLOCKING))

    def synchronize(self):
        self.driver.call("cuStreamSynchronize", self.handle)

    def to_device(self, dst, src, size):
        if size:
            self.driver.call("cuMemcpyHtoDAsync_v2", c_uint64(dst.address), c_void_p(src.address), c_size_t(size), self.handle)

    def to_host(self, dst, src, size):
        if size:
            self.driver.call("cuMemcpyDtoHAsync_v2", c_void_p(dst.address), c_uint64(src.address), c_size_t(size), self.handle)

    def capture(self, enqueue):
        """Records what `enqueue` puts on this stream as an executable graph."""
        self.driver.call("cuStreamBeginCapture_v2", self.handle, c_int(CAPTURE_THREAD_LOCAL))
        graph = c_void_p()
        try:
            enqueue()
        finally:
            self.driver.call("cuStreamEndCapture", self.handle, byref(graph))
        return Graph(self.driver, graph)

    def free(self):
        if self.handle:
            self.driver.call("cuStreamDestroy_v2", self.handle)
            self.handle = None


class Graph:
    def __init__(self, driver, graph):
        self.driver = driver
        self.handle = c_void_p()
        driver.call("cuGraphInstantiateWithFlags", byref(self.handle), graph, ctypes.c_ulonglong(0))
        driver.call("cuGraphDestroy", graph)

    def free(self):
        if self.handle:
            self.driver.call("cuGraphExecDestroy", self.handle)
            self.handle = None
