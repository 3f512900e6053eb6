"""Writes the models and data of the calibration benchmark: a ResNet-18 and a
BERT-style encoder with seeded weights, a CNN trained on scikit-learn's digits,
and random pictures. Needs torch, onnx, numpy and scikit-learn.

usage: calibrate_models.py FOLDER
"""
import pathlib
import sys

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, cin = [], 64
        for i, cout in enumerate([64, 128, 256, 512]):
            blocks += [Block(cin, cout, 1 if i == 0 else 2), Block(cout, cout, 1)]
            cin = cout
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Encoder(nn.Module):
    """Four layers of BERT's kind: 128 wide, 4 heads, additive attention mask."""

    def __init__(self, vocab=1000, width=128, heads=4, layers=4, classes=5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(128, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, ids, mask):
        x = self.norm(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x[:, 0])


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, x.shape[2] // self.heads).transpose(1, 2)

    def forward(self, x, bias):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.transpose(2, 3) / (q.shape[-1] ** 0.5) + bias
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.o(y))
        return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.head(self.body(x))


def warm(model, feeds):
    """Gives BatchNorm real statistics, so that activations keep a sane range."""
    model.train()
    with torch.no_grad():
        for f in feeds:
            model(f)
    return model.eval()


def export(model, args, path, inputs, outputs):
    axes = {n: {0: "batch"} for n in inputs + outputs}
    torch.onnx.export(model.eval(), args, path, input_names=inputs, output_names=outputs, dynamic_axes=axes, opset_version=17, dynamo=False)


def digits(folder):
    from sklearn.datasets import load_digits

    d = load_digits()
    x = (d.images[:, None] / 16.0).astype(np.float32)
    y = d.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1200], order[1200:]
    model = Digits()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(12):
        for i in range(0, len(train), 60):
            b = train[i : i + 60]
            loss = nn.functional.cross_entropy(model(torch.from_numpy(x[b])), torch.from_numpy(y[b]))
            opt.zero_grad()
            loss.backward()
            opt.step()
    export(model, (torch.from_numpy(x[:2]),), folder / "digits.onnx", ["image"], ["logits"])
    np.save(folder / "digits_calibration.npy", x[train[:256]])
    np.savez(folder / "digits_test.npz", image=x[test], labels=y[test])


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    rng = np.random.default_rng(0)
    pictures = rng.normal(0, 1, (200, 3, 224, 224)).astype(np.float32)
    # Neighbouring pixels agree, as in photographs.
    pictures = (pictures + np.roll(pictures, 1, 2) + np.roll(pictures, 1, 3) + np.roll(pictures, (1, 1), (2, 3))) / 2
    np.save(folder / "pictures.npy", pictures)
    export(warm(ResNet18(), [torch.from_numpy(pictures[i : i + 16]) for i in range(0, 32, 16)]), (torch.from_numpy(pictures[:2]),),
           folder / "resnet18.onnx", ["x"], ["logits"])
    ids = rng.integers(0, 1000, (64, 32)).astype(np.int64)
    mask = (np.arange(32)[None] < rng.integers(4, 33, (64, 1))).astype(np.int64)
    np.savez(folder / "sentences.npz", ids=ids, mask=mask)
    export(Encoder(), (torch.from_numpy(ids[:2]), torch.from_numpy(mask[:2])), folder / "encoder.onnx", ["ids", "mask"], ["logits"])
    digits(folder)


if __name__ == "__main__":
    main()
