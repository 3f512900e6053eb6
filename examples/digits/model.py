"""A small CNN for the 8 x 8 digits of scikit-learn."""
import pathlib

import torch
from torch import nn


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, image):
        return self.head(self.features(image))


def build():
    """The trained model; train.py wrote its weights."""
    model = Digits()
    model.load_state_dict(torch.load(pathlib.Path(__file__).with_name("weights.pt"), weights_only=True))
    return model
