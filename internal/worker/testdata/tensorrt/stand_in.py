"""A stand-in for tensorrt and libcuda, for what a real GPU does not show: what is
still allocated, and how many requests are under way.

Time is a counter that goes on by one with every call of the driver. Prints one
JSON object of what benchmark and compare answered and of what the driver saw.
"""
import json
import os
import sys
import tempfile
import types

sys.path.insert(0, sys.argv[1])
import cuda  # noqa: E402


class Driver:
    """Counts what is alive by kind, and requests under way by stream."""

    def __init__(self):
        self.lib = self
        self.alive, self.made, self.times = {}, 0, {}
        self.started, self.ended, self.behind = {}, {}, {}  # requests of each stream; how many lie before an event
        self.now, self.most_under_way, self.capturing = 0, 0, False
        self.log = []

    def call(self, name, *args):
        self.now += 1
        if status := getattr(self, name)(*args):
            raise AssertionError(f"{name} gave {status}")

    def make(self, kind, out):
        self.made += 1
        self.alive[self.made] = kind
        out._obj.value = self.made

    def drop(self, handle):
        del self.alive[getattr(handle, "value", handle)]  # a second time is a KeyError

    def cuMemGetInfo_v2(self, free, total):
        free._obj.value = (1 << 30) - sum(1 << 10 for k in self.alive.values() if k == "device memory")

    def cuMemAlloc_v2(self, out, size):
        self.make("device memory", out)

    def cuMemAllocHost_v2(self, out, size):
        self.make("pinned memory", out)

    def cuStreamCreate(self, out, flags):
        self.make("stream", out)

    def cuEventCreate(self, out, flags):
        self.make("event", out)

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        self.make("graph", out)

    cuMemFree_v2 = cuMemFreeHost = cuStreamDestroy_v2 = cuEventDestroy_v2 = cuGraphExecDestroy = lambda self, handle: self.drop(handle)

    def nothing(self, *args):
        return 0

    cuMemcpyHtoD_v2 = cuMemcpyHtoDAsync_v2 = cuMemcpyDtoHAsync_v2 = cuGraphDestroy = nothing

    def cuStreamSynchronize(self, stream):
        if stream is not None:
            self.ended[stream.value] = self.started.get(stream.value, 0)

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.capturing = True

    def cuStreamEndCapture(self, stream, graph):
        self.capturing = False

    def execute(self, stream):
        if self.capturing:
            return True
        self.started[stream] = self.started.get(stream, 0) + 1
        self.most_under_way = max(self.most_under_way, self.started[stream] - self.ended.get(stream, 0))
        return True

    def cuGraphLaunch(self, graph, stream):
        self.execute(stream.value)

    def cuEventRecord(self, event, stream):
        self.now += 1
        self.times[event.value] = self.now
        self.behind[event.value] = (stream.value, self.started.get(stream.value, 0))

    def cuEventSynchronize(self, event):
        stream, count = self.behind[event.value]
        self.ended[stream] = max(self.ended.get(stream, 0), count)

    def cuEventElapsedTime(self, out, earlier, later):
        out._obj.value = self.times[later.value] - self.times[earlier.value]


DRIVER = Driver()
DEVICE = types.SimpleNamespace(name="stand-in", activate=lambda: DEVICE, free_memory=lambda: 1 << 30)
DRIVER.device = lambda index: DEVICE
cuda.Driver = lambda: DRIVER


class Context:
    def __init__(self):
        DRIVER.made += 1
        self.key = DRIVER.made
        DRIVER.alive[self.key] = "context"
        DRIVER.log.append("context")

    def __del__(self):
        DRIVER.drop(self.key)

    set_optimization_profile_async = set_input_shape = set_tensor_address = lambda self, *args: True
    infer_shapes = lambda self: []
    get_tensor_shape = lambda self, name: (1, 4)

    def execute_async_v3(self, stream):
        return DRIVER.execute(stream)


class Plan:
    num_io_tensors, num_optimization_profiles = 2, 1
    create_execution_context = lambda self: Context()
    get_tensor_name = lambda self, i: "xy"[i]


class Runtime:
    def __init__(self, logger):
        DRIVER.log.append("load")

    deserialize_cuda_engine = lambda self, data: Plan()


import trt_build  # noqa: E402

trt_build.load_tensorrt = lambda: types.SimpleNamespace(Runtime=Runtime, __version__="stand-in")
trt_build.make_logger = lambda trt: types.SimpleNamespace(begin=lambda emit: None, errors=[])
trt_build.tensor_row = lambda trt, engine, name: {"name": name, "io": {"x": "input", "y": "output"}[name], "dtype": "float32", "location": "device"}
cuda.Buffer.read, cuda.Buffer.write = lambda self, size: bytes(size), lambda self, data: None

import trt_engine  # noqa: E402
import trt_measure  # noqa: E402

real_scatter = trt_measure.scatter


def scatter(driver, rng):
    DRIVER.log.append("scatter")
    return real_scatter(driver, rng)


trt_measure.scatter = scatter


def left():
    count = {}
    for kind in DRIVER.alive.values():
        count[kind] = count.get(kind, 0) + 1
    return count


folder = tempfile.mkdtemp()
path = os.path.join(folder, "x.bin")
for p in (path, os.path.join(folder, "model.plan")):
    with open(p, "wb") as f:
        f.write(bytes(16))
inputs = [{"name": "x", "dtype": "float32", "shape": [1, 4], "file": path}]
progress = []


def emit(event):
    progress.append((event["done"], event["total"]))


def opened():
    return trt_engine.open_engine({"plan": os.path.join(folder, "model.plan")}, emit)["engine"]


first = opened()
before = left()
under_way = {}
for graph in (False, True):
    DRIVER.most_under_way = 0
    begun = len(DRIVER.log)
    del progress[:]
    answer = trt_measure.benchmark({
        "engine": first, "inputs": inputs, "streams": 2, "cuda_graph": graph, "warmup_iters": 3, "iters": 10, "loads": 3, "max_seconds": 100}, emit)
    under_way["resident, graph" if graph else "resident"] = DRIVER.most_under_way
seen, placed = list(progress), DRIVER.log[begun:]
slots = [trt_measure.Slot(trt_engine.ENGINES[first], 0, trt_engine.read_feeds(inputs), False)]
DRIVER.most_under_way = 0
trt_measure.run_requests(slots, 5, transfers=True)
under_way["transfers"] = DRIVER.most_under_way
trt_measure.free(slots)
loads = DRIVER.log.count("load")
after = left()
second = opened()
del DRIVER.log[:]
side = {"inputs": inputs}
blocks = trt_measure.compare({
    "base": side | {"engine": first}, "head": side | {"engine": second}, "cuda_graph": True, "warmup_iters": 4, "rounds": 6, "block": 3, "loads": 2}, emit)
compared = list(DRIVER.log)
for handle in (first, second):
    trt_engine.close_engine({"engine": handle}, emit)
print(json.dumps({
    "phases": {p: len(v) for p, v in answer["phases"].items()}, "loads": answer["loads"], "loaded": loads, "under_way": under_way,
    "before": before, "after": after, "at_the_end": left(), "blocks": [len(blocks["base"]), len(blocks["head"])], "compared": compared, "placed": placed,
    "progress": seen,
}))
