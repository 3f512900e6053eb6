"""Tensors in .npz files, as internal/tensor writes them: types that NumPy lacks are
raw unsigned integers with {"dtype": ...} in the comment of the archive's member."""
import json
import zipfile

import numpy as np
import torch

DTYPES = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "float8e4m3fn": torch.float8_e4m3fn, "float8e5m2": torch.float8_e5m2,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
    "uint64": torch.uint64, "uint32": torch.uint32, "uint16": torch.uint16, "uint8": torch.uint8, "bool": torch.bool,
}
ALIASES = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16",
    "bf16": "bfloat16", "fp8": "float8e4m3fn", "long": "int64", "int": "int32",
}
NAMES = {t: n for n, t in DTYPES.items()}
RAW = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}


def torch_dtype(name):
    """The torch type of a name in the configuration, or None for a type that torch lacks (string)."""
    return DTYPES.get(ALIASES.get(name, name))


def name_of(dtype):
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))


def read(path):
    """{name: tensor} of an .npz file."""
    arrays = {}
    with np.load(path, allow_pickle=False) as archive:
        for info in archive.zip.infolist():
            name = info.filename.removesuffix(".npy")
            tensor = torch.from_numpy(np.ascontiguousarray(archive[name]))
            if info.comment:
                tensor = tensor.view(torch_dtype(json.loads(info.comment)["dtype"]))
            arrays[name] = tensor
    return arrays


def write(path, named):
    """Write (name, tensor) pairs; the same tensors give the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in named:
            tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            info = zipfile.ZipInfo(name + ".npy")  # dated 1980
            if tensor.dtype in RAW:
                info.comment = json.dumps({"dtype": name_of(tensor.dtype)}).encode()
                tensor = tensor.view(RAW[tensor.dtype])
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, tensor.numpy(), allow_pickle=False)


def equal(a, b):
    """Whether two tensors have the same bits (NaN equals itself)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
