"""Runs TensorRT engines. Needs only tensorrt and libcuda."""
import math
import os
import time

import cuda
import trt_build

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
        self.params = params
        self.driver = cuda.Driver()
        self.device = self.driver.device(params.get("device", "0")).activate()
        self.logger = trt_build.make_logger(trt)
        self.logger.begin(emit)
        self.load()
        self.names = [self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)]
        self.tensors = {n: trt_build.tensor_row(trt, self.engine, n) for n in self.names}

    def load(self):
        with open(self.params["plan"], "rb") as f:
            data = f.read()
        before = self.driver_free()
        started = time.perf_counter()
        self.runtime = trt_build.start(self.trt, "Runtime", self.logger, self.driver)
        if self.params.get("version_compatible"):
            self.runtime.engine_host_code_allowed = True
        self.engine = self.runtime.deserialize_cuda_engine(data)
        if self.engine is None:
            raise EngineError("the plan cannot be loaded", logged=self.logger.errors[-10:])
        self.lanes = [Lane(self)]
        self.load_ms = (time.perf_counter() - started) * 1e3
        self.memory = before - self.driver_free()

    def free(self):
        for lane in self.lanes:
            lane.free()
        self.lanes, self.engine, self.runtime = [], None, None

    def reload(self):
        """Loads the plan again, elsewhere in memory if something was taken meanwhile."""
        self.free()
        self.load()

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
        self.device, self.bytes, self.allocators = {}, {}, {}
        self.profile = None

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

    def free(self):
        """Gives back the context's memory and ours; nothing may be running."""
        self.context = None
        for buffer in [*self.device.values(), *(a.buffer for a in self.allocators.values())]:
            if buffer is not None:
                buffer.free()
        self.device, self.allocators = {}, {}
        self.stream.free()


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
    engine = ENGINES.pop(params["engine"], None)
    if engine is not None:
        engine.free()
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
