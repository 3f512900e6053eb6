"""A BERT-style encoder with random weights: token, position and type embeddings, two layers, a pooled answer."""
import torch
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 1000, 256, 4, 2, 128


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, mask):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, s, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + mask
        x = self.norm1(x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, WIDTH)))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions, self.types = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.classify = nn.Linear(WIDTH, 8)

    def forward(self, input_ids, attention_mask, token_type_ids):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.tokens(input_ids) + self.positions(positions) + self.types(token_type_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        return x, self.classify(x[:, 0])


def build():
    torch.manual_seed(0)
    return Encoder().eval()
