"""The independent loop around the very context that trtship's loop measures, in one process.

Speed depends on the place of the context in memory, and on the cores, the stream and
the pages that a process got: here all that is the same, and the loops differ alone.
argv[1] is as for peer.py. Prints for each engine a list: for each loading of it the
medians of trtship's loop and of the independent one.
"""
import json
import os
import sys

import torch

import peer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../internal/worker/python"))
import trt_engine
import trt_measure


def nothing(*_):
    pass


def trtship(slot, iters):
    _, _, phases = trt_measure.measure([slot], peer.WARM_UP, iters, 60, nothing, transfers=False)
    return list(zip(phases["compute"], phases["enqueue"]))


def one_loading(plan, graph, inputs, iters):
    """Both in turns: ours, theirs, theirs, ours, so that what drifts does so for both."""
    handle = trt_engine.open_engine({"plan": plan}, nothing)["engine"]
    engine, feeds = trt_engine.ENGINES[handle], trt_engine.read_feeds(inputs)
    engine.infer(0, feeds)
    slot = trt_measure.Slot(engine, 0, feeds, graph)
    stream = torch.cuda.ExternalStream(slot.lane.stream.handle.value)
    independent = peer.runnable(slot.lane.context, stream, graph)
    ours = trtship(slot, iters // 2)
    with torch.cuda.stream(stream):  # where torch replays a graph
        theirs = peer.loop(*independent, stream, iters // 2) + peer.loop(*independent, stream, iters // 2)
    ours += trtship(slot, iters // 2)
    stream.synchronize()
    del independent
    slot.free()
    trt_engine.close_engine({"engine": handle}, nothing)
    return {"ours": peer.medians(ours), "theirs": peer.medians(theirs)}


asked = json.loads(sys.argv[1])
print(json.dumps([[one_loading(iters=asked["iters"], **p) for _ in range(asked["loads"])] for p in asked["loops"]]))
