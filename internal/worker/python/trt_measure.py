"""Measures TensorRT engines, alone and two in turns.

How long an engine takes depends a little on where the memory of its execution
context lies: by a few percent, the same for as long as it lies there. One
context is one sample of that, however often it runs. So an engine is loaded
several times, with other memory between its weights and its context each time,
and two engines that are compared are placed anew in every round.
"""
import collections
import random
import time

import cuda
from trt_engine import ENGINES, EngineError, Lane, read_feeds

# Requests of a slot that are under way at once while compute times are taken: the
# GPU has the next one when it ends one, so that an event waits for no host. With
# transfers there is one, whose end to end time is its own.
AHEAD = 2

# The phases of the two passes. Compute and enqueue are taken with the inputs on
# the device already, as other loops around an engine do; transfers and the
# request as a whole, with its own compute, in a pass of their own.
RESIDENT = ("compute", "enqueue")
TRANSFERS = ("h2d", "execute", "d2h", "end_to_end")


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
        self.idle = [[cuda.Event(d) for _ in range(4)] for _ in range(AHEAD)]
        self.running = collections.deque()
        lane.enqueue()  # the first call allocates; a graph must not capture that
        lane.stream.synchronize()
        self.graph = lane.stream.capture(lane.enqueue) if use_graph else None
        self.record = d.lib.cuEventRecord
        if self.graph is not None:
            self.execute, self.arguments = d.lib.cuGraphLaunch, (self.graph.handle, lane.stream.handle)
        else:
            self.execute, self.arguments = lane.context.execute_async_v3, (lane.stream.handle.value,)

    def start(self, transfers):
        events = e0, e1, e2, e3 = self.idle.pop()
        stream = self.lane.stream
        record, handle, execute, arguments, clock = self.record, stream.handle, self.execute, self.arguments, time.perf_counter
        before, after = e1.handle, e2.handle
        started = clock()
        if transfers:
            e0.record(stream)
            for n, size in self.ins:
                stream.to_device(self.lane.device[n], self.pinned[n], size)
        record(before, handle)
        t = clock()
        execute(*arguments)
        enqueue = clock() - t
        record(after, handle)
        if transfers:
            for n, size in self.outs:
                stream.to_host(self.pinned[n], self.lane.device[n], size)
            e3.record(stream)
        self.running.append((events, started, enqueue))

    def finish(self, transfers):
        """Waits for the oldest request: its row of RESIDENT or, with transfers, of TRANSFERS."""
        events, started, enqueue = self.running.popleft()
        e0, e1, e2, e3 = events
        (e3 if transfers else e2).synchronize()
        wall = time.perf_counter() - started
        self.idle.append(events)
        compute = e2.since(e1)
        return (e1.since(e0), compute, e3.since(e2), wall * 1e3) if transfers else (compute, enqueue * 1e3)

    def free(self):
        """Gives everything back; no request may be running."""
        self.lane.stream.synchronize()
        self.execute = self.arguments = None
        if self.graph is not None:
            self.graph.free()
        for events in self.idle:
            for e in events:
                e.free()
        for buffer in self.pinned.values():
            buffer.free()
        self.lane.free()


def median(values):
    s = sorted(values)
    n = len(s)
    return (s[n // 2] + s[(n - 1) // 2]) / 2


def run_requests(slots, count, transfers=False):
    """`count` requests over all slots in turns; rows in order of completion."""
    rows, ahead = [], 1 if transfers else AHEAD
    for i in range(count + ahead * len(slots)):
        slot = slots[i % len(slots)]
        if len(slot.running) == ahead or (slot.running and i >= count):
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


def measure(slots, warmup_iters, iters, seconds, progress, transfers):
    """Warm-up, then `iters` requests a slot, unless time is up before."""
    warm = warm_up(slots, warmup_iters, min(10, seconds), transfers)
    total, rows = iters * len(slots), []
    until, began = time.monotonic() + seconds, time.perf_counter()
    while len(rows) < total and time.monotonic() < until:
        rows += run_requests(slots, min(100 * len(slots), total - len(rows)), transfers)
        progress(len(rows))
    names = TRANSFERS if transfers else RESIDENT
    return warm, time.perf_counter() - began, {p: [r[i] for r in rows] for i, p in enumerate(names)}


def scatter(driver, rng):
    """Takes memory of random sizes, so that what is taken next lies elsewhere."""
    taken = []
    try:
        for _ in range(rng.randrange(8)):
            taken.append(cuda.Buffer(driver, rng.randrange(1, 65) << 16))
    except cuda.CudaError:
        pass  # an engine that fills the GPU lies where it can
    return taken


def free(things):
    for t in things:
        t.free()


def affordable(loads, engine, params):
    """So many loadings as take a quarter of the time limit at most, and have a request each."""
    by_time = 1 + int(params["max_seconds"] * 1e3 / 4 / max(engine.load_ms, 1e-3))
    return max(1, min(loads, by_time, params["iters"]))


def benchmark(params, emit):
    """Measures one engine: cold call, then for every loading one pass without and one with transfers.

    Every phase is in milliseconds: compute, h2d, execute and d2h from events on
    the stream, enqueue and end_to_end by the host's clock.
    """
    engine = ENGINES[params["engine"]]
    feeds, profile = read_feeds(params["inputs"]), params.get("profile", 0)
    started = time.perf_counter()
    engine.infer(profile, feeds)
    reply = {"cold_ms": (time.perf_counter() - started) * 1e3, "load_ms": engine.load_ms}
    loads, rng, taken = affordable(params["loads"], engine, params), random.Random(0), []
    found = []
    for i in range(loads):
        if i:  # the first lies where any program's would
            free(taken)
            engine.reload()
            taken = scatter(engine.driver, rng)
        found.append(one_load(engine, profile, feeds, params, emit, i, loads))
    free(taken)
    return reply | pooled(found)


def one_load(engine, profile, feeds, params, emit, number, loads):
    """Both passes over the engine as it lies in memory now."""
    before, streams = engine.driver_free(), params["streams"]
    slots = [Slot(engine, profile, feeds, params["cuda_graph"]) for _ in range(streams)]
    memory = engine.memory + before - engine.driver_free()
    iters = params["iters"] * (number + 1) // loads - params["iters"] * number // loads
    warm = params["warmup_iters"] if number == 0 else min(params["warmup_iters"], 30)
    total, passed = 2 * params["iters"] * streams, 2 * streams * (params["iters"] * number // loads)
    seconds = params["max_seconds"] / loads

    def progress(done, earlier=0):
        emit({"event": "progress", "done": passed + earlier + done, "total": total, "label": "requests"})

    _, _, resident = measure(slots, warm, iters, seconds, progress, transfers=False)
    settled, wall, whole = measure(slots, warm, iters, seconds, lambda done: progress(done, iters * streams), transfers=True)
    free(slots)
    return {"memory": memory, "warmup": settled, "wall": wall, "load_ms": engine.load_ms, "phases": resident | whole}


def pooled(found):
    """All loadings as one measurement, and what each of them was like."""
    return {
        "gpu_memory_bytes": found[0]["memory"], "wall_seconds": sum(f["wall"] for f in found),
        "warmup": {"requests": sum(f["warmup"]["requests"] for f in found), "steady": all(f["warmup"]["steady"] for f in found)},
        "phases": {p: [v for f in found for v in f["phases"][p]] for p in RESIDENT + TRANSFERS},
        "loads": [{
            "load_ms": f["load_ms"], "requests": len(f["phases"]["end_to_end"]),
            "compute_ms": median(f["phases"]["compute"]), "enqueue_ms": median(f["phases"]["enqueue"]),
        } for f in found],
    }


class Side:
    """One of two engines that are set against each other."""

    def __init__(self, params, use_graph):
        self.engine, self.profile = ENGINES[params["engine"]], params.get("profile", 0)
        self.feeds, self.use_graph = read_feeds(params["inputs"]), use_graph
        self.slot, self.taken = None, []

    def place(self, rng, reload):
        if reload:
            self.engine.reload()
        self.taken = scatter(self.engine.driver, rng)
        self.slot = Slot(self.engine, self.profile, self.feeds, self.use_graph)

    def block(self, warm, count):
        run_requests([self.slot], warm)
        return median([r[0] for r in run_requests([self.slot], count)])

    def free(self):
        self.slot.free()
        free(self.taken)
        self.slot, self.taken = None, []


def compare(params, emit):
    """Two engines alternate on one GPU in one process, in rounds whose order is ABBA.

    In every round both have new contexts, tensors and graphs; `loads` times both
    engines are loaded anew. Returns the compute median of every block, in
    milliseconds, for each engine.
    """
    sides = [Side(params[s], params["cuda_graph"]) for s in ("base", "head")]
    rounds, loads = params["rounds"], max(1, min(params["loads"], params["rounds"]))
    rng, blocks = random.Random(0), ([], [])
    for i in range(rounds):
        reload = i > 0 and i * loads // rounds != (i - 1) * loads // rounds
        order = (0, 1) if i % 2 == 0 else (1, 0)
        for side in order:
            sides[side].place(rng, reload)
        for side in order:
            # No steady state is waited for: whatever drifts, drifts for both.
            blocks[side].append(sides[side].block(params["warmup_iters"] if i == 0 else 5, params["block"]))
        free(sides)
        emit({"event": "progress", "done": i + 1, "total": rounds, "label": "rounds"})
    return {"base": blocks[0], "head": blocks[1]}
