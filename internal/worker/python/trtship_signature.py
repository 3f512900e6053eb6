"""From declared inputs to the arguments of forward, and from its result to named outputs."""
import dataclasses
import inspect

import torch

import trtship_arrays
from trtship_errors import MODEL, Failure, first_line


class Adapter(torch.nn.Module):
    """The model with a flat signature: the declared inputs in order, a tuple of tensors out."""

    def __init__(self, module, model):
        super().__init__()
        self.model = module
        self.inputs = model["inputs"]
        self.names = model.get("output_names") or []
        self.route = Route(module, self.inputs)
        self.output_names = None  # known after a forward

    def forward(self, *tensors):
        args, kwargs = self.route.arguments(tensors)
        named = select(flatten(self.model(*args, **kwargs)), self.names)
        self.output_names = [n for n, _ in named]
        return tuple(t for _, t in named)

    def run(self, tensors):
        """A forward whose errors name the inputs."""
        try:
            with torch.no_grad():
                return self(*tensors)
        except Failure:
            raise
        except (Exception, SystemExit) as err:
            raise Failure(
                MODEL, "forward", f"forward raised {first_line(err)}", cause=err,
                hint="check dtype, shape, range and argument of model.inputs against the model's forward",
                details=[("called with", call_text(self.inputs, tensors)), ("forward takes", self.route.text)],
            ) from err


def call_text(inputs, tensors):
    return ", ".join(f"{i['name']} {trtship_arrays.name_of(t.dtype)}{list(t.shape)}" for i, t in zip(inputs, tensors))


class Route:
    """Which input goes where in forward's arguments."""

    def __init__(self, module, inputs):
        self.order, self.required, self.variadic, self.text = parameters(module)
        self.tree = {}  # parameter -> index of an input, or {entry: ...}
        self.extra = []  # inputs for *args
        self.declared = ", ".join(i["name"] for i in inputs) or "none"
        for index, one in enumerate(inputs):
            if one.get("argument"):
                self.put(one["argument"].split("."), index, one["name"])
        for index, one in enumerate(inputs):
            if not one.get("argument"):
                self.put_next(index, one["name"])
        left = [p for p in self.required if p not in self.tree]
        if left:
            raise self.wrong(f"forward needs {', '.join(left)}, and no input goes there")

    def wrong(self, message):
        return Failure(MODEL, "signature", message, details=[("declared inputs", self.declared), ("forward takes", self.text)],
                       hint="model.inputs lists forward's tensors in order; argument sends one elsewhere")

    def put(self, path, index, name):
        if self.order is not None and path[0] not in self.order:
            raise self.wrong(f"input {name}: forward has no argument {path[0]!r}")
        place = self.tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise self.wrong(f"input {name}: {'.'.join(path)} lies inside another input's argument")
        if path[-1] in place:
            raise self.wrong(f"input {name}: argument {'.'.join(path)} is taken")
        place[path[-1]] = index

    def put_next(self, index, name):
        free = [p for p in self.order or [] if p not in self.tree]
        if free:
            self.tree[free[0]] = index
        elif self.order is None or self.variadic:
            self.extra.append(index)
        else:
            raise self.wrong(f"input {name} has no argument left in forward")

    def arguments(self, tensors):
        args, kwargs, leading = [], {}, True
        for p in self.order or self.tree:
            leading = leading and p in self.tree and self.order is not None
            if p in self.tree:
                value = build(self.tree[p], tensors)
                if leading:
                    args.append(value)
                else:
                    kwargs[p] = value
        return args + [tensors[i] for i in self.extra], kwargs


def build(node, tensors):
    if not isinstance(node, dict):
        return tensors[node]
    built = {key: build(value, tensors) for key, value in node.items()}
    if sorted(built) == sorted(str(i) for i in range(len(built))):
        return tuple(built[str(i)] for i in range(len(built)))
    return built


def parameters(module):
    """(names that can be given, those without default, whether there is *args, text); names None if unknown."""
    if isinstance(module, torch.jit.ScriptModule):
        arguments = module.forward.schema.arguments[1:]
        names = [a.name for a in arguments]
        return names, [a.name for a in arguments if not a.has_default_value()], False, f"({', '.join(names)})"
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return None, [], True, "unknown"
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    names = [n for n, k in kinds.items() if k not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)]
    required = [n for n in names if signature.parameters[n].default is inspect.Parameter.empty]
    return names, required, inspect.Parameter.VAR_POSITIONAL in kinds.values(), str(signature)


def flatten(value, path=""):
    """[(path, tensor)] of whatever forward returned. None stands for an output that is turned off."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if value is None:
        return []
    if isinstance(value, dict):  # also transformers' ModelOutput
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(zip(getattr(value, "_fields", None) or range(len(value)), value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        raise Failure(MODEL, "signature", f"forward returned a {type(value).__name__} at output {path or '(whole)'}",
                      hint="outputs are tensors, or tuples, lists, dicts and dataclasses of them")
    return [leaf for key, entry in items for leaf in flatten(entry, f"{path}.{key}" if path else str(key))]


def select(leaves, names):
    """[(name, tensor)]: by key where every name is one, else by position."""
    paths = [p for p, _ in leaves]
    by_path = dict(leaves)
    if not leaves:
        raise Failure(MODEL, "signature", "forward returned no tensor")
    if names and all(n in by_path for n in names):
        return [(n, by_path[n]) for n in names]
    if names and len(names) != len(leaves):
        raise Failure(
            MODEL, "signature", f"forward returned {len(leaves)} outputs, model.output_names has {len(names)}",
            details=[("output_names", ", ".join(names)), ("returned", ", ".join(f"{p or '(whole)'} {trtship_arrays.name_of(t.dtype)}{list(t.shape)}" for p, t in leaves))])
    if not names:
        names = [default_name(p, len(leaves)) for p in paths]
    return list(zip(names, (t for _, t in leaves)))


def default_name(path, count):
    text = path.replace(".", "_")
    if not text:
        return "output"
    return f"output_{text}" if text[0].isdigit() else text


def example(inputs, sizes, device="cpu"):
    """Deterministic tensors for the declared inputs; symbols take their size from sizes."""
    generator = torch.Generator().manual_seed(0)
    return [example_one(one, sizes, generator).to(device) for one in inputs]


def example_one(one, sizes, generator):
    dtype = trtship_arrays.torch_dtype(one["dtype"])
    if dtype is None:
        raise Failure(MODEL, "signature", f"input {one['name']} has type {one['dtype']}, which torch lacks")
    shape = [sizes[d] if isinstance(d, str) else d for d in one["shape"]]
    low, high = one.get("range") or (None, None)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        low, high = (int(low), int(high)) if low is not None else (0, 1)
        return torch.randint(low, high + 1, shape, generator=generator).to(dtype)
    if low is None:
        return torch.randn(shape, generator=generator).to(dtype)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * (float(high) - float(low)) + float(low)).to(dtype)


def first_working(adapter, inputs, sizes, device):
    """[(sizes, tensors, outputs)] of the first two sets of sizes with which a forward runs, and notes on those before."""
    worked, notes, first_error = [], [], None
    for one in sizes or [{}]:
        tensors = example(inputs, one, device)
        try:
            worked.append((one, tensors, adapter.run(tensors)))
        except Failure as err:
            first_error = first_error or err
            notes.append(f"forward does not run with {size_text(one)}: {err}")
        if len(worked) == 2:
            break
    if not worked:
        raise first_error
    return worked, notes


def size_text(sizes):
    return ", ".join(f"{symbol}={size}" for symbol, size in sizes.items()) or "the declared shapes"


def describe_inputs(inputs):
    return [{"name": i["name"], "dtype": trtship_arrays.ALIASES.get(i["dtype"], i["dtype"]), "dims": [str(d) for d in i["shape"]]} for i in inputs]


def describe_outputs(names, worked):
    """Output tensors, with symbols for the sizes that follow a symbol over the forwards."""
    rows = []
    for index, name in enumerate(names):
        shapes = [outputs[index].shape for _, _, outputs in worked]
        if len({len(s) for s in shapes}) > 1:
            raise Failure(MODEL, "signature", f"output {name} has another rank at another size: {[list(s) for s in shapes]}")
        dims = [dimension(f"{name}_dim_{d}", [s[d] for s in shapes], [sizes for sizes, _, _ in worked]) for d in range(len(shapes[0]))]
        rows.append({"name": name, "dtype": trtship_arrays.name_of(worked[0][2][index].dtype), "dims": dims})
    return rows


def dimension(fallback, found, sizes):
    for symbol in sizes[0]:
        if found == [s[symbol] for s in sizes]:
            return symbol
    return str(found[0]) if len(set(found)) == 1 else fallback
