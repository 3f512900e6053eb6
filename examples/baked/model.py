"""A mistake that passes every check of shapes: a size becomes a Python number while tracing."""
import torch
from torch import nn


class Baked(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x):
        n = int(x.shape[0])  # the tracer keeps the number, not the dimension
        return self.line(x)[:n]


def build():
    torch.manual_seed(0)
    return Baked()
