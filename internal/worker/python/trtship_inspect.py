"""The facts about a model: report.Inspection, and what a reader should know before exporting it."""
import collections

import torch

import trtship_arrays
import trtship_observe
import trtship_signature

TRAINING = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)


def inspect_model(module, model, sizes):
    adapter = trtship_signature.Adapter(module, model)
    worked, notes = trtship_signature.first_working(adapter, model["inputs"], sizes, model["device"])
    used, tensors, outputs = worked[0]
    observer = trtship_observe.Observer(model["inputs"], tensors)
    activations, hooked = measure_activations(module, adapter, tensors, observer)
    if not hooked:
        notes.append("activation bound: TorchScript takes no hooks, so the results of all operators are summed")
    parameters = list(module.parameters())
    facts = {
        "parameters": sum(p.numel() for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "activation_upper_bound_bytes": activations,
        "inputs": trtship_signature.describe_inputs(model["inputs"]),
        "outputs": trtship_signature.describe_outputs(adapter.output_names, worked),
        "operators": dict(sorted(collections.Counter(type_name(m) for _, m in leaves(module)).items())),
        "dtypes": dict(sorted(count_types(parameters).items())),
        "findings": [*training_mode(module, observer), *random_operators(observer), *fp16_range(module, observer)],
        "integer_ranges": integer_ranges(model["inputs"], observer),
    }
    return facts, used, notes


def leaves(module):
    return [(name, m) for name, m in module.named_modules() if not list(m.children())]


def type_name(module):
    return getattr(module, "original_name", None) or type(module).__name__


def count_types(parameters):
    counts = collections.Counter()
    for p in parameters:
        counts[trtship_arrays.name_of(p.dtype)] += p.numel()
    return counts


def measure_activations(module, adapter, tensors, observer):
    """(bytes of all leaf modules' outputs, whether hooks could be set). Runs the forward under the observer."""
    total, handles = 0, []

    def hook(_module, _arguments, result):
        nonlocal total
        for _, t in trtship_signature.flatten(result):
            total += t.numel() * t.element_size()

    scripted = any(isinstance(m, torch.jit.ScriptModule) for m in module.modules())  # takes no hooks
    if not scripted:
        handles = [m.register_forward_hook(hook) for _, m in leaves(module)]
    try:
        with observer:
            adapter.run(tensors)
    finally:
        for h in handles:
            h.remove()
    return (observer.bytes, False) if scripted else (total, True)


def finding(kind, nodes, text, severe=False):
    return {"kind": kind, "nodes": sorted(nodes), "text": text, "severe": severe}


def training_mode(module, observer):
    found = []
    kept = {name: m for name, m in module.named_modules() if m.training and is_training_sensitive(m)}
    if kept:
        found.append(finding("training-mode", kept, "stays in training mode after eval(): answers change from run to run or with the batch", True))
    blind = [name for name, m in module.named_modules()
             if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.running_mean is None and name not in kept]
    if blind:
        found.append(finding("training-mode", blind, "keeps no running statistics, so it uses those of the batch", True))
    elif observer.batch_statistics and not any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in kept.values()):
        found.append(finding("training-mode", observer.batch_statistics, "forward normalises with the statistics of the batch", True))
    return found


def is_training_sensitive(module):
    return isinstance(module, TRAINING) or any(word in type_name(module) for word in ("Dropout", "BatchNorm"))


def random_operators(observer):
    if not observer.random:
        return []
    counts = ", ".join(f"{name} {n} times" for name, n in sorted(observer.random.items()))
    return [finding("random-operator", observer.random, f"forward draws random numbers ({counts}): no two runs agree")]


def fp16_range(module, observer):
    found, large, small = [], [], []
    for name, t in [*module.named_parameters(), *module.named_buffers()]:
        if not t.is_floating_point() or t.is_meta:
            continue
        largest, below = extremes(t)
        if largest > trtship_observe.FP16_MAX:
            large.append(f"{name} (largest {largest:g})")
        if below:
            small.append(f"{name} ({below} of {t.numel()} values)")
    scalars = [f"{name}({value:g})" for name, value in observer.scalars]
    if large:
        found.append(finding("fp16-range", large, "holds values beyond 65504, which overflow in fp16"))
    if small:
        found.append(finding("fp16-range", small, "holds values below 6e-8, which become 0 in fp16"))
    if scalars:
        found.append(finding("fp16-range", scalars, "operators use constants outside the range of fp16"))
    return found


def extremes(t, chunk=1 << 22):
    """(largest finite magnitude, number of values that fp16 takes for 0), in pieces that stay in the cache."""
    largest, below = 0.0, 0
    for piece in t.detach().reshape(-1).split(chunk):
        magnitude = torch.nan_to_num(piece.float(), 0, 0, 0).abs_()
        largest = max(largest, float(magnitude.max()))
        if float(magnitude.min()) < trtship_observe.FP16_MIN:
            below += int(((magnitude > 0) & (magnitude < trtship_observe.FP16_MIN)).sum())
    return largest, below


def integer_ranges(inputs, observer):
    rows = []
    for one in inputs:
        dtype = trtship_arrays.torch_dtype(one["dtype"])
        if dtype is None or dtype.is_floating_point or dtype == torch.bool:
            continue
        row = {"input": one["name"], "low": 0, "high": 1, "source": "default"}
        if one.get("range"):
            row.update(low=int(one["range"][0]), high=int(one["range"][1]), source="configuration")
        elif one["name"] in observer.tables:
            table, operator = observer.tables[one["name"]]
            row.update(high=table - 1, source=f"{operator} (table of {table} rows)")
        rows.append(row)
    return rows
