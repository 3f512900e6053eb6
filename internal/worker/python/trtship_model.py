"""Loads a model: from a factory, with weights or without, or a TorchScript archive."""
import functools
import importlib
import importlib.metadata
import json
import pickle
import random
import sys

import numpy as np
import torch

from trtship_errors import MISSING, MODEL, Failure, first_line

WRAPPERS = ("state_dict", "model_state_dict", "model")  # where training scripts put a state dict
USED = set()  # installed packages that loading a model imported, such as torchvision
UNTRUSTED = "loading it runs code from the file: set model.trust_source: true only if you trust where it comes from"


@functools.lru_cache(maxsize=1)
def load_cached(spec):
    return load(json.loads(spec))


def load(model):
    """Return an nn.Module in eval mode on the model's device."""
    if model["device"] == "cuda" and not torch.cuda.is_available():
        raise Failure(MISSING, "missing", "export.device is cuda and torch sees no GPU", hint="set export.device: cpu")
    before = packages()
    seed()  # a factory that draws its weights draws the same ones in every child
    if model["kind"] == "torchscript":
        module = load_torchscript(model)
    elif model["kind"] in ("module", "checkpoint"):
        module = load_factory(model)
    else:
        raise Failure(MODEL, "load", f"model.kind {model['kind']} is not loaded by torch")
    module = module.to(model["device"])
    module.eval()
    USED.update(packages() - before)
    return module


def packages():
    return {name.partition(".")[0] for name in list(sys.modules)}


def installed_files():
    """RECORD of every installed package that a model uses: it changes with the package."""
    used = USED - sys.stdlib_module_names
    if not used:
        return []
    owners = importlib.metadata.packages_distributions()
    names = {owner for module in used for owner in owners.get(module, ())}
    records = [importlib.metadata.distribution(n).locate_file(f) for n in names for f in importlib.metadata.files(n) or () if f.name == "RECORD"]
    return sorted(str(r) for r in records)


def seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def load_factory(model):
    weights = load_weights(model) if model.get("path") else None
    if isinstance(weights, torch.nn.Module):  # a pickled module needs no factory
        return weights
    module = call_factory(model)
    if weights is not None:
        load_state(module, weights, model["path"])
    return module


def call_factory(model):
    name = model.get("factory") or ""
    factory = find_factory(name)
    arguments = model.get("factory_args") or {}
    try:
        module = factory(**arguments)
    except (Exception, SystemExit) as err:
        raise Failure(MODEL, "load", f"factory {name} raised {first_line(err)}", cause=err,
                      details=[("factory_args", json.dumps(arguments))]) from err
    if not isinstance(module, torch.nn.Module):
        raise Failure(MODEL, "load", f"factory {name} returned {type(module).__name__}, not a torch.nn.Module",
                      hint="model.factory names a callable that returns the module, e.g. package.module:build")
    return module


def find_factory(name):
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise Failure(MODEL, "load", f"model.factory {name!r} is not of the form package.module:callable")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        ours = err.name and (module_name == err.name or module_name.startswith(err.name + "."))
        hint = "modules are looked for in the configuration's folder and in model.python_path" if ours else \
            "install it into the Python that trtship uses (--python or TRTSHIP_PYTHON)"
        raise Failure(MODEL, "load", f"import {module_name}: no module named {err.name!r}", hint=hint, cause=err,
                      details=[("looked in", "\n".join(sys.path))]) from err
    except (Exception, SystemExit) as err:
        raise Failure(MODEL, "load", f"import {module_name}: {first_line(err)}", cause=err) from err
    for part in path.split("."):
        if not hasattr(found, part):
            names = sorted(n for n, v in vars(found).items() if callable(v) and not n.startswith("_"))
            raise Failure(MODEL, "load", f"{module_name} has no {path!r}", details=[("callables there", ", ".join(names))])
        found = getattr(found, part)
    if not callable(found):
        raise Failure(MODEL, "load", f"{name} is {type(found).__name__}, not callable")
    return found


def load_weights(model):
    path = model["path"]
    try:
        if path.endswith(".safetensors"):
            return read_safetensors(path)
        if path.endswith(".npz"):
            import trtship_arrays

            return trtship_arrays.read(path)
        if model["trust_source"]:
            print(f"warning: model.trust_source: loading {path} may run code from it", file=sys.stderr)
        loaded = torch.load(path, map_location="cpu", weights_only=not model["trust_source"])
    except pickle.UnpicklingError as err:
        raise Failure(MODEL, "trust", f"{path} is not a plain state dict: {UNTRUSTED}", cause=err,
                      hint="save the weights with torch.save(model.state_dict(), path)") from err
    except Exception as err:
        raise Failure(MODEL, "load", f"load weights {path}: {first_line(err)}", cause=err) from err
    return loaded if isinstance(loaded, torch.nn.Module) else unwrap(loaded, path)


def unwrap(loaded, path):
    """The state dict within what a training script saved."""
    def is_state(d):
        return isinstance(d, dict) and len(d) > 0 and all(isinstance(v, torch.Tensor) for v in d.values())

    for candidate in [loaded, *(loaded.get(k) for k in WRAPPERS if isinstance(loaded, dict))]:
        if is_state(candidate):
            return candidate
    keys = ", ".join(map(str, loaded)) if isinstance(loaded, dict) else type(loaded).__name__
    raise Failure(MODEL, "load", f"{path} holds no state dict", details=[("found", keys), ("looked for", ", ".join(("tensors by name", *WRAPPERS)))])


def load_state(module, weights, path):
    if weights and all(k.startswith("module.") for k in weights):  # saved from DataParallel
        weights = {k.removeprefix("module."): v for k, v in weights.items()}
    try:
        missing, unexpected = module.load_state_dict(weights, strict=False)
    except RuntimeError as err:
        raise Failure(MODEL, "load", f"weights {path} do not fit the model", cause=err, details=[("torch", err)]) from err
    if missing or unexpected:
        raise Failure(MODEL, "load", f"weights {path} do not fit the model: {len(missing)} missing, {len(unexpected)} unexpected",
                      details=[("missing in the file", ", ".join(missing)), ("only in the file", ", ".join(unexpected))])


def read_safetensors(path):
    """{name: tensor}: 8 bytes of length, a JSON header, the data."""
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
             "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}
    import trtship_arrays

    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    out = {}
    for name, row in header.items():
        if name != "__metadata__":
            begin, end = row["data_offsets"]
            raw = torch.frombuffer(data, dtype=torch.uint8, count=end - begin, offset=begin) if end > begin else torch.empty(0, dtype=torch.uint8)
            out[name] = raw.clone().view(trtship_arrays.DTYPES[names[row["dtype"]]]).reshape(row["shape"])
    return out


def load_torchscript(model):
    if not model["trust_source"]:
        raise Failure(MODEL, "trust", f"{model['path']} is TorchScript: {UNTRUSTED}")
    print(f"warning: model.trust_source: loading {model['path']} may run code from it", file=sys.stderr)
    try:
        return torch.jit.load(model["path"], map_location="cpu")
    except Exception as err:
        raise Failure(MODEL, "load", f"load TorchScript {model['path']}: {first_line(err)}", cause=err) from err
