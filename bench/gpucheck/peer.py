"""An independent loop around an engine: CUDA events by torch, a few lines.

argv[1] is JSON: plan, graph (bool), iters, inputs [{name, dtype, shape, file}].
Prints the medians of compute and of the time to enqueue, in milliseconds.
"""
import json
import math
import statistics
import sys
import time

import tensorrt as trt
import torch

p = json.loads(sys.argv[1])
engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(open(p["plan"], "rb").read())
context = engine.create_execution_context()
keep = []
for t in p["inputs"]:
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
graph = None
with torch.cuda.stream(stream):
    for _ in range(3):
        context.execute_async_v3(stream.cuda_stream)
    stream.synchronize()
    if p["graph"]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            context.execute_async_v3(stream.cuda_stream)
    compute, enqueue = [], []
    for i in range(p["iters"] + 200):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(stream)
        started = time.perf_counter()
        if graph is None:
            context.execute_async_v3(stream.cuda_stream)
        else:
            graph.replay()
        took = time.perf_counter() - started
        b.record(stream)
        b.synchronize()
        if i >= 200:
            compute.append(a.elapsed_time(b))
            enqueue.append(took * 1e3)
print(json.dumps({"compute_ms": statistics.median(compute), "enqueue_ms": statistics.median(enqueue)}))
