"""Train the model and write weights.pt, test.npz and calibration.npz beside this file.

Needs scikit-learn, whose copy of the UCI handwritten digits it uses (1797 images).
"""
import pathlib

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from model import Digits

here = pathlib.Path(__file__).parent
torch.manual_seed(0)
torch.set_num_threads(1)

digits = load_digits()
images = (digits.images / 16).astype(np.float32)[:, None]
train_x, test_x, train_y, test_y = train_test_split(
    images, digits.target.astype(np.int64), test_size=400, random_state=0, stratify=digits.target)

model = Digits()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
x, y = torch.from_numpy(train_x), torch.from_numpy(train_y)
for epoch in range(25):
    model.train()
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(torch.from_numpy(test_x)).argmax(1).numpy() == test_y).mean()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, test accuracy {accuracy:.4f}")

torch.save(model.state_dict(), here / "weights.pt")
np.savez_compressed(here / "test.npz", image=test_x, labels=test_y)
np.savez_compressed(here / "calibration.npz", image=train_x[:256])
