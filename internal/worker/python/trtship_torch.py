"""The torch half: inspect, export, forward."""
import json

import torch

import trtship_arrays
import trtship_export
import trtship_inspect
import trtship_model
import trtship_observe
import trtship_signature
from trtship_errors import MODEL, Failure

READS = None  # which of the user's files were read


def prepare(setup):
    """Once, before the first call: everything that makes results repeat."""
    global READS
    READS = setup["reads"]
    torch.set_num_threads(setup["threads"])
    torch.set_num_interop_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def origin():
    return {"torch": str(torch.__version__), "sources": READS.files() + trtship_model.installed_files()}


def load(model):
    return trtship_model.load_cached(json.dumps(model, sort_keys=True))


def inspect(params, emit):
    facts, sizes, notes = trtship_inspect.inspect_model(load(params["model"]), params["model"], params["sizes"])
    return {"inspection": facts, "sizes": sizes, "notes": notes, **origin()}


def export(params, emit):
    return {**trtship_export.export_model(load(params["model"]), params["model"], params), **origin()}


def forward(params, emit):
    model = params["model"]
    adapter = trtship_signature.Adapter(load(model), model).eval()
    rows, random = [], set()
    for done, feed in enumerate(params["feeds"]):
        tensors = read_feed(feed["in"], model)
        outputs = adapter.run(tensors)
        named = list(zip(adapter.output_names, outputs))
        trtship_arrays.write(feed["out"], named)
        different = differing(named, adapter.run(tensors)) if params["twice"] else []
        if different:
            random |= trtship_observe.random_operators(lambda: adapter.run(tensors))
        rows.append({
            "outputs": [{"name": n, "dtype": trtship_arrays.name_of(t.dtype), "shape": list(t.shape)} for n, t in named],
            "different": different,
        })
        emit({"event": "progress", "done": done + 1, "total": len(params["feeds"]), "label": "samples"})
    return {"feeds": rows, "random_operators": sorted(random), **origin()}


def differing(named, again):
    return [name for (name, t), u in zip(named, again) if not trtship_arrays.equal(t, u)]


def read_feed(path, model):
    arrays = trtship_arrays.read(path)
    declared = [one["name"] for one in model["inputs"]]
    if not set(declared) <= set(arrays):
        raise Failure(MODEL, "signature", f"{path} does not hold the declared inputs",
                      details=[("declared", ", ".join(declared)), ("in the file", ", ".join(arrays))])
    tensors = []
    for one in model["inputs"]:
        tensor, want = arrays[one["name"]], trtship_arrays.torch_dtype(one["dtype"])
        if tensor.dtype != want:
            raise Failure(MODEL, "signature", f"{path}: {one['name']} is {trtship_arrays.name_of(tensor.dtype)}, the configuration says {one['dtype']}")
        tensors.append(tensor.to(model["device"]))
    return tensors


METHODS = {"torch.inspect": inspect, "torch.export": export, "torch.forward": forward}
