"""Runs and measures TensorRT engines. Needs only tensorrt and libcuda."""
import math
import os
import time

import cuda
import trt_build
import trt_versions

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "int64": 8, "bool": 1, "uint8": 1, "float8e4m3fn": 1}


class EngineError(RuntimeError):
    """An engine that could not be loaded, or a request that it refused."""

    def __init__(self, message, **details):
        super().__init__(message)
        self.details = details


def nbytes(dtype, shape):
    return SIZES[dtype] * math.prod(shape)


class Engine:
    """A loaded plan with one execution context on one stream."""

    def __init__(self, params, emit):
        self.trt = trt = trt_build.load_tensorrt()
        self.driver = cuda.Driver()
        self.device = self.driver.device(params.get("device", "0")).activate()
        self.logger = trt_build.make_logger(trt)
        self.logger.begin(emit)
        before = self.driver_free()
        with open(params["plan"], "rb") as f:
            data = f.read()
        started = time.perf_counter()
        self.runtime = trt.Runtime(self.logger)
        if params.get("version_compatible"):
            self.runtime.engine_host_code_allowed = True
        self.engine = self.runtime.deserialize_cuda_engine(data)
        if self.engine is None:
            raise EngineError("the plan cannot be loaded", logged=self.logger.errors[-10:])
        self.lanes = [Lane(self)]
        self.load_ms = (time.perf_counter() - started) * 1e3
        self.memory = before - self.driver_free()
        self.names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        self.tensors = {n: trt_build.tensor_row(trt, self.engine, n) for n in self.names}

    def driver_free(self):
        return self.device.free_memory()

    def inputs(self):
        return [t for t in self.tensors.values() if t["io"] == "input"]

    def outputs(self):
        return [t for t in self.tensors.values() if t["io"] == "output"]

    def infer(self, profile, feeds):
        """feeds: {name: (shape, bytes)}; returns {name: (dtype, shape, bytes)}."""
        lane = self.lanes[0]
        lane.bind(profile, {n: shape for n, (shape, _) in feeds.items()})
        for name, (_, data) in feeds.items():
            lane.device[name].write(data)
        lane.enqueue()
        lane.stream.synchronize()
        return lane.results()


class Lane:
    """An execution context with its stream and buffers: one request at a time."""

    def __init__(self, owner):
        self.owner, self.driver = owner, owner.driver
        self.context = owner.engine.create_execution_context()
        if self.context is None:
            raise EngineError("no execution context: too little GPU memory?", logged=owner.logger.errors[-10:])
        self.stream = cuda.Stream(self.driver)
        self.device, self.host, self.bytes, self.allocators = {}, {}, {}, {}
        self.profile = None
        self.graph = None

    def bind(self, profile, shapes):
        """Sets profile and input shapes, and gives every tensor memory."""
        trt, context = self.owner.trt, self.context
        if profile != self.profile:
            if not context.set_optimization_profile_async(profile, self.stream.handle.value):
                raise EngineError(f"profile {profile} was refused", logged=self.owner.logger.errors[-5:])
            self.stream.synchronize()
            self.profile = profile
        for t in self.owner.inputs():
            name = t["name"]
            if name not in shapes:
                raise EngineError(f"input {name} has no value")
            if not context.set_input_shape(name, tuple(shapes[name])):
                raise EngineError(f"input {name}: shape {list(shapes[name])} is outside profile {profile}", logged=self.owner.logger.errors[-5:])
            self.reserve(t, nbytes(t["dtype"], shapes[name]))
        missing = context.infer_shapes()
        if missing:
            raise EngineError(f"inputs without a shape or a value: {missing}")
        for t in self.owner.outputs():
            shape = tuple(context.get_tensor_shape(t["name"]))
            if -1 in shape:
                self.allocate_late(trt, t["name"])
            else:
                self.reserve(t, nbytes(t["dtype"], shape))

    def reserve(self, t, size):
        name, host = t["name"], t["location"] == "host"
        old = self.device.get(name)
        if old is None or old.size < size:
            if old is not None:
                old.free()
            self.device[name] = cuda.Buffer(self.driver, size, host=host)
            self.graph = None
        self.bytes[name] = size
        self.context.set_tensor_address(name, self.device[name].address)

    def allocate_late(self, trt, name):
        """An output whose size depends on data: TensorRT asks for memory while it runs."""
        if name not in self.allocators:
            self.allocators[name] = make_allocator(trt, self.driver)
            self.context.set_output_allocator(name, self.allocators[name])

    def enqueue(self):
        if not self.context.execute_async_v3(self.stream.handle.value):
            raise EngineError("the engine refused to run", logged=self.owner.logger.errors[-10:])

    def results(self):
        out = {}
        for t in self.owner.outputs():
            name = t["name"]
            if name in self.allocators:
                a = self.allocators[name]
                shape, buffer = a.shape, a.buffer
            else:
                shape, buffer = tuple(self.context.get_tensor_shape(name)), self.device[name]
            size = nbytes(t["dtype"], shape)
            out[name] = (t["dtype"], list(shape), buffer.read(size) if size else b"")
        return out


def make_allocator(trt, driver):
    class Allocator(trt.IOutputAllocator):
        def __init__(self):
            trt.IOutputAllocator.__init__(self)
            self.buffer, self.shape = None, ()

        def reallocate_output(self, name, memory, size, alignment):
            if self.buffer is None or self.buffer.size < size:
                if self.buffer is not None:
                    self.buffer.free()
                self.buffer = cuda.Buffer(driver, size)
            return self.buffer.address

        def reallocate_output_async(self, name, memory, size, alignment, stream):
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name, shape):
            self.shape = tuple(shape)

    return Allocator()


ENGINES = {}


def open_engine(params, emit):
    """Loads a plan and returns its handle, load time and memory."""
    engine = Engine(params, emit)
    handle = str(len(ENGINES) + 1)
    ENGINES[handle] = engine
    return {
        "engine": handle, "load_ms": engine.load_ms, "memory_bytes": engine.memory,
        "tensors": list(engine.tensors.values()), "profiles": engine.engine.num_optimization_profiles,
        "tensorrt": engine.trt.__version__, "gpu": engine.device.name,
    }


def close_engine(params, emit):
    ENGINES.pop(params["engine"], None)
    return {}


def read_feeds(rows):
    feeds = {}
    for row in rows:
        with open(row["file"], "rb") as f:
            feeds[row["name"]] = (row["shape"], f.read())
        want = nbytes(row["dtype"], row["shape"])
        if len(feeds[row["name"]][1]) != want:
            raise EngineError(f"input {row['name']}: file has {len(feeds[row['name']][1])} bytes, {row['dtype']}{row['shape']} needs {want}")
    return feeds


def infer(params, emit):
    """Runs one request. Tensors are raw little-endian files; outputs go to out_dir."""
    engine = ENGINES[params["engine"]]
    for row in params["inputs"]:
        t = engine.tensors.get(row["name"])
        if t is None or t["io"] != "input":
            raise EngineError(f"the engine has no input {row['name']}; it has {[t['name'] for t in engine.inputs()]}")
        if t["dtype"] != row["dtype"]:
            raise EngineError(f"input {row['name']} is {t['dtype']} in the engine, {row['dtype']} was given")
    results = engine.infer(params.get("profile", 0), read_feeds(params["inputs"]))
    rows = []
    for i, (name, (dtype, shape, data)) in enumerate(results.items()):
        path = os.path.join(params["out_dir"], f"out-{i}.bin")
        with open(path, "wb") as f:
            f.write(data)
        rows.append({"name": name, "dtype": dtype, "shape": shape, "file": path})
    return {"outputs": rows}


class Slot:
    """A lane prepared for measuring: pinned host buffers, events, perhaps a graph.

    What runs between two events is bound here once: the interpreter's own time
    there would count as the engine's wherever the host is the limit.
    """

    def __init__(self, engine, profile, feeds, use_graph):
        self.lane = lane = Lane(engine)
        lane.bind(profile, {n: s for n, (s, _) in feeds.items()})
        if lane.allocators:
            raise EngineError("an output's size depends on data; such an engine is not measured with fixed buffers")
        d = engine.driver
        self.ins = [(n, len(data)) for n, (_, data) in feeds.items() if engine.tensors[n]["location"] != "host"]
        self.outs = [(t["name"], lane.bytes[t["name"]]) for t in engine.outputs()]
        self.pinned = {n: cuda.Buffer(d, size, host=True) for n, size in self.ins + self.outs}
        for n, (_, data) in feeds.items():
            lane.device[n].write(data)
            if n in self.pinned:
                self.pinned[n].write(data)
        self.events = [cuda.Event(d) for _ in range(4)]
        lane.enqueue()  # the first call allocates; a graph must not capture that
        lane.stream.synchronize()
        self.graph = lane.stream.capture(lane.enqueue) if use_graph else None
        self.record = d.lib.cuEventRecord
        self.busy = False
        self.started = self.enqueue_ms = 0.0
        if self.graph is not None:
            self.execute, self.arguments = d.lib.cuGraphLaunch, (self.graph.handle, lane.stream.handle)
        else:
            self.execute, self.arguments = lane.context.execute_async_v3, (lane.stream.handle.value,)

    def start(self, transfers):
        stream, (e0, e1, e2, e3) = self.lane.stream, self.events
        record, handle, execute, arguments, clock = self.record, stream.handle, self.execute, self.arguments, time.perf_counter
        before, after = e1.handle, e2.handle
        self.started = clock()
        if transfers:
            e0.record(stream)
            for n, size in self.ins:
                stream.to_device(self.lane.device[n], self.pinned[n], size)
        record(before, handle)
        t = clock()
        execute(*arguments)
        self.enqueue_ms = (clock() - t) * 1e3
        record(after, handle)
        if transfers:
            for n, size in self.outs:
                stream.to_host(self.pinned[n], self.lane.device[n], size)
            e3.record(stream)
        self.busy = True

    def finish(self, transfers):
        """A row of RESIDENT or, with transfers, of TRANSFERS."""
        e = self.events
        e[3 if transfers else 2].synchronize()
        wall = (time.perf_counter() - self.started) * 1e3
        self.busy = False
        compute = e[2].since(e[1])
        return (e[1].since(e[0]), compute, e[3].since(e[2]), wall) if transfers else (compute, self.enqueue_ms)


# The phases of the two passes. Compute and enqueue are taken with the inputs on
# the device already, as other loops around an engine do; transfers and the
# request as a whole, with its own compute, in a pass of their own.
RESIDENT = ("compute", "enqueue")
TRANSFERS = ("h2d", "execute", "d2h", "end_to_end")


def median(values):
    s = sorted(values)
    n = len(s)
    return (s[n // 2] + s[(n - 1) // 2]) / 2


def run_requests(slots, count, transfers=False):
    """`count` requests over all slots, each slot one at a time; rows in order of completion."""
    rows = []
    for i in range(count + len(slots)):
        slot = slots[i % len(slots)]
        if slot.busy:
            rows.append(slot.finish(transfers))
        if i < count:
            slot.start(transfers)
    return rows


def warm_up(slots, at_least, seconds, transfers=False):
    """Requests until three windows' compute medians agree within 2%, or time is up."""
    window, medians, done, until = max(10, at_least // 3), [], 0, time.monotonic() + seconds
    column = 1 if transfers else 0
    while True:
        medians.append(median([r[column] for r in run_requests(slots, window, transfers)]))
        done += window
        last = medians[-3:]
        steady = len(last) == 3 and max(last) <= 1.02 * min(last)
        if (steady and done >= at_least) or time.monotonic() > until:
            return {"requests": done, "steady": steady}


def measure(slots, params, emit, transfers):
    """Warm-up, then `iters` requests a slot, unless time is up before."""
    warm = warm_up(slots, params["warmup_iters"], params.get("warmup_seconds", 10), transfers)
    total, rows = params["iters"] * len(slots), []
    until, began = time.monotonic() + params["max_seconds"], time.perf_counter()
    while len(rows) < total and time.monotonic() < until:
        rows += run_requests(slots, min(100 * len(slots), total - len(rows)), transfers)
        emit({"event": "progress", "done": len(rows), "total": total, "label": "requests"})
    names = TRANSFERS if transfers else RESIDENT
    return warm, time.perf_counter() - began, {p: [r[i] for r in rows] for i, p in enumerate(names)}


def benchmark(params, emit):
    """Measures one engine: cold call, then one pass without and one with transfers.

    Every phase is in milliseconds: compute, h2d, execute and d2h from events on
    the stream, enqueue and end_to_end by the host's clock.
    """
    engine = ENGINES[params["engine"]]
    feeds = read_feeds(params["inputs"])
    profile = params.get("profile", 0)
    started = time.perf_counter()
    engine.infer(profile, feeds)
    cold_ms = (time.perf_counter() - started) * 1e3
    before = engine.driver_free()
    slots = [Slot(engine, profile, feeds, params["cuda_graph"]) for _ in range(params["streams"])]
    memory = engine.memory + before - engine.driver_free()
    _, _, phases = measure(slots, params, emit, transfers=False)
    warm, wall, with_transfers = measure(slots, params, emit, transfers=True)
    return {
        "cold_ms": cold_ms, "load_ms": engine.load_ms, "gpu_memory_bytes": memory, "warmup": warm,
        "wall_seconds": wall, "phases": phases | with_transfers,
    }


def compare(params, emit):
    """Two engines alternate on one GPU in one process, in blocks whose order is ABBA.

    Returns the compute median of every block, for each engine.
    """
    slots = {}
    for side in ("base", "head"):
        engine = ENGINES[params[side]["engine"]]
        slots[side] = [Slot(engine, params[side].get("profile", 0), read_feeds(params[side]["inputs"]), params["cuda_graph"])]
        # No steady state is waited for: whatever drifts, drifts for both.
        run_requests(slots[side], params["warmup_iters"])
    blocks = {"base": [], "head": []}
    for i in range(params["rounds"]):
        order = ("base", "head") if i % 2 == 0 else ("head", "base")
        for side in order:
            run_requests(slots[side], 2)  # the other engine's caches have gone
            blocks[side].append(median([r[0] for r in run_requests(slots[side], params["block"])]))
        emit({"event": "progress", "done": i + 1, "total": params["rounds"], "label": "rounds"})
    return {"base": blocks["base"], "head": blocks["head"]}


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


METHODS = {
    "trt.build": trt_build.build, "trt.open": open_engine, "trt.close": close_engine,
    "trt.infer": infer, "trt.benchmark": benchmark, "trt.compare": compare, "trt.gpus": gpus,
}
