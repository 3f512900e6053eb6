"""A small transformer encoder: token ids and a mask in, a vector for each sentence out."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocabulary=1000, width=64, heads=4, layers=2, longest=128):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids, attention_mask):
        steps = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token(input_ids) + self.position(steps)
        mask = attention_mask[:, None, None, :] == 0
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        weight = attention_mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * weight).sum(1) / weight.sum(1).clamp(min=1)
        return {"hidden": x, "pooled": pooled}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        # -1e4 and not -1e9: the smaller constant stays finite in fp16
        scores = scores.masked_fill(mask, -1e4).softmax(-1)
        x = x + self.drop(self.out((scores @ v).transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


def build(**sizes):
    torch.manual_seed(0)  # random weights, the same ones every time
    return Encoder(**sizes)
