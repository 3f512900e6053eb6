"""An independent loop around engines: CUDA events by torch, a few lines.

argv[1] is JSON: iters, loads and a list "loops" of {plan, graph (bool), inputs [{name, dtype, shape, file}]}.
Prints for each of them a list: for each loading of the engine the medians of compute
and of the time to enqueue, in milliseconds.
"""
import json
import math
import statistics
import sys
import time
from collections import deque

import tensorrt as trt
import torch

WARM_UP = 100


def bound(engine, inputs, keep):
    """A context with its tensors."""
    context = engine.create_execution_context()
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
    keep.append(context)
    return context


def runnable(context, stream, graph):
    """What runs the context once on the stream, and its arguments."""
    execute, arguments = context.execute_async_v3, (stream.cuda_stream,)
    for _ in range(3):
        execute(*arguments)
    stream.synchronize()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            execute(*arguments)
        execute, arguments = captured.replay, ()
    return execute, arguments


def loop(execute, arguments, stream, iters):
    """For each of iters requests: the time between the events around it, and the time to enqueue it, in milliseconds."""
    clock, rows, under_way = time.perf_counter, [], deque()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(3)]
    for pair in events:  # torch makes an event when it is first recorded
        for e in pair:
            e.record(stream)
    for i in range(iters + WARM_UP + 2):
        if len(under_way) == 2 or i >= iters + WARM_UP:  # the next one is there when one ends
            a, b, took = under_way.popleft()
            b.synchronize()
            rows.append((a.elapsed_time(b), took * 1e3))
        if i < iters + WARM_UP:
            a, b = events[i % len(events)]
            a.record(stream)
            started = clock()
            execute(*arguments)
            took = clock() - started
            b.record(stream)
            under_way.append((a, b, took))
    return rows[WARM_UP:]


def medians(rows):
    compute, enqueue = zip(*rows)
    return {"compute_ms": statistics.median(compute), "enqueue_ms": statistics.median(enqueue)}


def measure(plan, graph, inputs, iters, loads):
    found = []
    for _ in range(loads):
        engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(open(plan, "rb").read())
        keep, stream = [], torch.cuda.Stream()
        with torch.cuda.stream(stream):
            # How fast an engine is depends on where its context lies in memory: trtship
            # measures behind the context of the cold call, and so does this.
            bound(engine, inputs, keep).execute_async_v3(stream.cuda_stream)
            stream.synchronize()
            found.append(medians(loop(*runnable(bound(engine, inputs, keep), stream, graph), stream, iters)))
        del engine, keep
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps([measure(iters=asked["iters"], loads=asked["loads"], **p) for p in asked["loops"]]))
