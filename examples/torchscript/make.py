"""Write model.pt, a TorchScript archive of a small network with a branch."""
import pathlib

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor, scale: torch.Tensor):
        y = torch.tanh(self.line(x)) * scale
        return y, y.argmax(1)


torch.manual_seed(0)
archive = torch.jit.script(Scaled().eval())
archive.save(str(pathlib.Path(__file__).with_name("model.pt")))
