"""ResNet-50 with random weights: what is checked is the way to an engine, not what it sees."""
import torch
import torchvision


def build():
    torch.manual_seed(0)
    return torchvision.models.resnet50(weights=None).eval()
