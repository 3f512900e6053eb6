"""Exports the models of the optimizer benchmark with random weights: ResNet-18,
ResNet-50 and MobileNetV3 of torchvision, and a BERT-base encoder, each with
both of torch's exporters and, as "plain", with the TorchScript one told to leave
constants and BatchNormalization as they are.

usage: models.py FOLDER
"""
import pathlib
import sys
import warnings

import torch
from torch import nn
import torchvision


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.size ** 0.5 + mask
        context = torch.matmul(torch.softmax(scores, -1), v).permute(0, 2, 1, 3).contiguous()
        return self.out(context.view(x.shape[0], x.shape[1], -1))


class Layer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down, self.norm2 = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width, eps=1e-12)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask):
        x = self.norm1(x + self.drop(self.attention(x, mask)))
        return self.norm2(x + self.drop(self.down(nn.functional.gelu(self.up(x)))))


class Bert(nn.Module):
    """A BERT-base encoder: 12 layers, 768 wide, 12 heads."""

    def __init__(self, layers=12, width=768, heads=12, inner=3072, vocabulary=30522, positions=512):
        super().__init__()
        self.words, self.types = nn.Embedding(vocabulary, width), nn.Embedding(2, width)
        self.places, self.norm = nn.Embedding(positions, width), nn.LayerNorm(width, eps=1e-12)
        self.register_buffer("ids", torch.arange(positions).unsqueeze(0))
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, input_ids, attention_mask, token_type_ids):
        x = self.words(input_ids) + self.types(token_type_ids) + self.places(self.ids[:, : input_ids.shape[1]])
        x = self.norm(x)
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def build(name):
    torch.manual_seed(0)
    if name == "bert":
        ids = torch.randint(0, 30522, (2, 16))
        args = (ids, torch.ones_like(ids), torch.zeros_like(ids))
        names = ["input_ids", "attention_mask", "token_type_ids"]
        return Bert().eval(), args, names, ["hidden", "pooled"], {n: {0: "batch", 1: "seq"} for n in names}
    make = {"resnet18": torchvision.models.resnet18, "resnet50": torchvision.models.resnet50, "mobilenet": torchvision.models.mobilenet_v3_large}[name]
    model = make(weights=None)
    for m in model.modules():  # fresh statistics would make BatchNorm an identity
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.uniform_(-0.1, 0.1)
            m.running_var.uniform_(0.5, 1.5)
    return model.eval(), (torch.randn(2, 3, 224, 224),), ["x"], ["logits"], {"x": {0: "batch"}}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    for name in ("resnet18", "resnet50", "mobilenet", "bert"):
        model, args, inputs, outputs, dims = build(name)
        for exporter in ("dynamo", "torchscript", "plain"):
            path = folder / f"{name}-{exporter}.onnx"
            if path.exists():
                continue
            if exporter == "dynamo":
                shapes = [{a: torch.export.Dim(d) for a, d in dims[n].items()} for n in inputs]
                if name == "bert":
                    batch, seq = torch.export.Dim("batch"), torch.export.Dim("seq", max=512)
                    shapes = [{0: batch, 1: seq}] * 3
                torch.onnx.export(model, args, str(path), input_names=inputs, output_names=outputs, dynamic_shapes=tuple(shapes),
                                  dynamo=True, external_data=False, verbose=False)
            else:
                plain = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE} if exporter == "plain" else {}
                torch.onnx.export(model, args, str(path), input_names=inputs, output_names=outputs, dynamic_axes=dims, dynamo=False, opset_version=17, **plain)
            print("wrote", path.name, file=sys.stderr)


main()
