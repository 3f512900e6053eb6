"""Models that the worker's tests load. Each function is a factory."""
import collections
import dataclasses
import os
import signal
import sys
import time

import torch
from torch import nn

import helper_weights


class Plain(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, image):
        x = torch.relu(self.bn(self.conv(image)))
        return self.head(self.drop(x.mean((2, 3))))


def plain(width=4):
    assert helper_weights.SCALE == 2
    print("hello from user code on stdout")
    return Plain(width)


class Baked(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        n = int(x.shape[0])
        return self.line(x.reshape(n, 4)).reshape(n, 2)


def baked():
    return Baked()


class Nested(nn.Module):
    """dict and tuple inputs, an argument with a default, dict outputs with None."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        self.line = nn.Linear(4, 3)

    def forward(self, batch, pair, scale=None, bias=None):
        x = self.emb(batch["ids"]) * batch["mask"].unsqueeze(-1)
        x = x + pair[0].unsqueeze(1) - pair[1].unsqueeze(1)
        if scale is not None:
            x = x * scale
        return {"logits": self.line(x), "loss": None, "hidden": (x, x.sum(1))}


def nested():
    return Nested()


@dataclasses.dataclass
class Result:
    scores: torch.Tensor
    labels: torch.Tensor
    extra: object = None


class Data(nn.Module):
    def forward(self, x, y):
        return Result(x + y, (x > y).sum(1))


def data():
    return Data()


class Pair(nn.Module):
    Out = collections.namedtuple("Out", "a b")

    def forward(self, x):
        return self.Out(x * 2, x.to(torch.bfloat16))


def pair():
    return Pair()


class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(4)
        self.blind = nn.BatchNorm1d(4, track_running_stats=False)
        self.register_buffer("mask", torch.tensor([-1e9, 1.0, 1e-8, 0.0]))

    def train(self, mode=True):
        super().train(mode)
        self.drop.training = True
        return self

    def forward(self, x):
        return (self.blind(self.bn(self.drop(x))) + self.mask).masked_fill(x > 0, -1e30)


def training():
    return Training()


class Noise(nn.Module):
    def forward(self, x):
        return x, x + torch.randn_like(x)


def noise():
    return Noise()


class Unused(nn.Module):
    def forward(self, x, ignored):
        return x * 2


def unused():
    return Unused()


class Dies(nn.Module):
    def forward(self, x):
        print("about to die", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGSEGV)
        return x


def dies():
    return Dies()


class Hangs(nn.Module):
    def forward(self, x):
        print("hanging")
        time.sleep(600)
        return x


def hangs():
    return Hangs()


class Leaves(nn.Module):
    def forward(self, x):
        os._exit(0)


def leaves():
    return Leaves()


class Eats(nn.Module):
    def forward(self, x):
        return x + torch.zeros(1 << 32).sum()


def eats():
    return Eats()


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("no such luck")


def raises():
    return Raises()


def broken(**arguments):
    raise RuntimeError("the factory is broken")


def not_a_module():
    return {"a": 1}


def exits():
    sys.exit(3)


def reads_file():
    with open(os.path.join(os.path.dirname(__file__), "sub", "note.txt")) as f:
        f.read()
    return Plain()


class Steps(nn.Module):
    """Accepts only multiples of 4."""

    def forward(self, x):
        return x.reshape(x.shape[0], 4, -1).sum(2)


def steps():
    return Steps()


not_callable = 3


class Unrolled(nn.Module):
    """A Python loop over the batch: as many nodes as there were samples."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)

    def forward(self, x):
        return torch.stack([self.line(row) for row in x])


def unrolled():
    return Unrolled()


class Forgotten(nn.Module):
    """Dropout and BatchNorm that eval() does not reach."""

    def __init__(self):
        super().__init__()
        self.drop, self.bn = nn.Dropout(0.5), nn.BatchNorm1d(4)

    def train(self, mode=True):
        super().train(mode)
        self.drop.training = self.bn.training = True
        return self

    def forward(self, x):
        return self.bn(self.drop(x))


def forgotten():
    return Forgotten()


def uses_installed():
    import networkx  # noqa: F401 - an installed package that torch has not imported yet

    return Plain()
