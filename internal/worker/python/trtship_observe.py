"""What a forward does, seen from torch's dispatcher."""
import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FP16_MAX, FP16_MIN = 65504.0, 6e-8
BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit")


class Observer(TorchDispatchMode):
    """Records random operators, batch statistics, scalars beyond fp16, tables that integer inputs index, and bytes of results."""

    def __init__(self, inputs=(), tensors=()):
        super().__init__()
        self.storages = {t.untyped_storage().data_ptr(): i["name"] for i, t in zip(inputs, tensors) if not t.dtype.is_floating_point}
        self.random, self.batch_statistics, self.scalars = {}, {}, {}
        self.tables = {}  # input -> fewest rows of the tables that it indexes
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags and draws(name, args, kwargs):
            self.random[name] = self.random.get(name, 0) + 1
        if name in BATCH_NORMS and named(func, args, kwargs, "training") is True:
            self.batch_statistics[name] = self.batch_statistics.get(name, 0) + 1
        for value in [*args, *kwargs.values()]:
            if isinstance(value, float) and beyond_fp16(value):
                self.scalars[(name, value)] = self.scalars.get((name, value), 0) + 1
        if name in ("embedding", "index_select", "gather"):
            self.index(name, args)
        result = func(*args, **kwargs)
        for t in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(t, torch.Tensor):
                self.bytes += t.numel() * t.element_size()
        return result

    def index(self, name, args):
        if name == "embedding":
            rows, indices = args[0].shape[0], args[1]
        else:
            rows, indices = args[0].shape[args[1]], args[2]
        known = self.storages.get(indices.untyped_storage().data_ptr())
        if known:
            self.tables[known] = min(rows, self.tables.get(known, (rows, ""))[0]), name


def draws(name, args, kwargs):
    """Whether the call really draws: dropout in eval mode has the tag and does not."""
    return "dropout" not in name or False not in [*args, *kwargs.values()]


def named(func, args, kwargs, argument):
    for position, declared in enumerate(func._schema.arguments):
        if declared.name == argument:
            return args[position] if position < len(args) else kwargs.get(argument)
    return None


def beyond_fp16(value):
    return math.isfinite(value) and value != 0 and (abs(value) > FP16_MAX or abs(value) < FP16_MIN)


def random_operators(run):
    """Names of the operators that draw random numbers while run() runs."""
    observer = Observer()
    with observer:
        run()
    return set(observer.random)
