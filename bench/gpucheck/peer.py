"""An independent loop around engines: CUDA events by torch, a few lines.

argv[1] is JSON: iters and a list "loops" of {plan, graph (bool), inputs [{name, dtype, shape, file}]}.
Prints a list of the medians of compute and of the time to enqueue, in milliseconds.
"""
import json
import math
import statistics
import sys
import time

import tensorrt as trt
import torch


def loop(plan, graph, inputs, iters):
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(open(plan, "rb").read())
    context = engine.create_execution_context()
    keep = []
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
    stream = torch.cuda.Stream()
    compute, enqueue = [], []
    with torch.cuda.stream(stream):
        for _ in range(3):
            context.execute_async_v3(stream.cuda_stream)
        stream.synchronize()
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, stream=stream):
                context.execute_async_v3(stream.cuda_stream)
        for i in range(iters + 200):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(stream)
            started = time.perf_counter()
            if graph:
                captured.replay()
            else:
                context.execute_async_v3(stream.cuda_stream)
            took = time.perf_counter() - started
            b.record(stream)
            b.synchronize()
            if i >= 200:
                compute.append(a.elapsed_time(b))
                enqueue.append(took * 1e3)
    return {"compute_ms": statistics.median(compute), "enqueue_ms": statistics.median(enqueue)}


asked = json.loads(sys.argv[1])
print(json.dumps([loop(iters=asked["iters"], **p) for p in asked["loops"]]))
