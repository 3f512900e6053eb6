"""Write the files that the worker's tests load into the folder given as argument."""
import json
import sys

import numpy as np
import torch

import zoo

folder = sys.argv[1]
torch.manual_seed(1)
model = zoo.Plain().eval()
state = model.state_dict()
torch.save(state, f"{folder}/plain.pt")
torch.save({"epoch": 3, "state_dict": state}, f"{folder}/wrapped.pt")
torch.save({f"module.{k}": v for k, v in state.items()}, f"{folder}/parallel.pt")
torch.save({"epoch": 3, "note": "no weights"}, f"{folder}/none.pt")
torch.save({k: v for k, v in state.items() if k != "head.bias"} | {"extra": torch.zeros(1)}, f"{folder}/other.pt")
torch.save(zoo.Plain(6).state_dict(), f"{folder}/wide.pt")
torch.save(model, f"{folder}/pickled.pt")
np.savez(f"{folder}/plain.npz", **{k: v.numpy() for k, v in state.items()})
torch.jit.trace(model, torch.zeros(2, 3, 8, 8)).save(f"{folder}/script.pt")

header, data = {"__metadata__": {"format": "pt"}}, b""
for name, t in state.items():
    raw = t.numpy().tobytes()
    kind = {"float32": "F32", "int64": "I64"}[str(t.dtype).removeprefix("torch.")]
    header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header).encode()
with open(f"{folder}/plain.safetensors", "wb") as f:
    f.write(len(text).to_bytes(8, "little") + text + data)
