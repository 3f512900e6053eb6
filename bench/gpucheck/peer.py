"""An independent loop around engines: CUDA events by torch, a few lines.

argv[1] is JSON: iters, loads and a list "loops" of {plan, graph (bool), inputs [{name, dtype, shape, file}]}.
Prints for each of them a list: for each loading of the engine, behind other memory
each time, the medians of compute and of the time to enqueue, in milliseconds.
"""
import json
import math
import random
import statistics
import sys
import time
from collections import deque

import tensorrt as trt
import torch

WARM_UP = 100


def load(plan, inputs):
    """A context with its tensors bound, and all that must live as long."""
    runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
    engine = runtime.deserialize_cuda_engine(open(plan, "rb").read())
    context = engine.create_execution_context()
    keep = [runtime, engine]
    for t in inputs:
        data = torch.frombuffer(bytearray(open(t["file"], "rb").read()), dtype=getattr(torch, t["dtype"])).reshape(t["shape"]).cuda()
        context.set_input_shape(t["name"], tuple(t["shape"]))
        context.set_tensor_address(t["name"], data.data_ptr())
        keep.append(data)
    for i in range(engine.num_io_tensors):
        name = engine.get_tensor_name(i)
        if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT:
            out = torch.empty(8 * max(1, math.prod(context.get_tensor_shape(name))), dtype=torch.uint8, device="cuda")
            context.set_tensor_address(name, out.data_ptr())
            keep.append(out)
    torch.cuda.synchronize()
    return context, keep


def loop(context, graph, iters):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                context.execute_async_v3(stream.cuda_stream)
        rows, under_way = [], deque()
        for i in range(iters + WARM_UP + 2):
            if len(under_way) == 2 or i >= iters + WARM_UP:  # the next one is there when one ends
                a, b, took = under_way.popleft()
                b.synchronize()
                rows.append((a.elapsed_time(b), took))
            if i < iters + WARM_UP:
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record(stream)
                started = time.perf_counter()
                if graph:
                    captured.replay()
                else:
                    context.execute_async_v3(stream.cuda_stream)
                took = time.perf_counter() - started
                b.record(stream)
                under_way.append((a, b, took * 1e3))
    compute, enqueue = zip(*rows[WARM_UP:])
    return {"compute_ms": statistics.median(compute), "enqueue_ms": statistics.median(enqueue)}


def measure(plan, graph, inputs, iters, loads, rng):
    found = []
    for _ in range(loads):
        # Over 10 MiB the allocator asks the driver for each.
        elsewhere = [torch.empty(rng.randrange(11, 24) << 20, dtype=torch.uint8, device="cuda") for _ in range(rng.randrange(4))]
        context, keep = load(plan, inputs)
        found.append(loop(context, graph, iters))
        del context, keep, elsewhere
        torch.cuda.empty_cache()
    return found


asked, rng = json.loads(sys.argv[1]), random.Random(1)
print(json.dumps([measure(iters=asked["iters"], loads=asked["loads"], rng=rng, **p) for p in asked["loops"]]))
