# SPDX-License-Identifier: Apache-2.0
"""Safetensors files, for the Python programs beside the C ones: see safetensors.h. Writing
needs numpy, reading torch as well."""

import json
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Tensor(NamedTuple):
    """One tensor as it lies in a safetensors file: little-endian, row-major."""

    dtype: str  # "F32", "F16" or "BF16"
    shape: tuple[int, ...]
    data: bytes


def encode(array: np.ndarray, dtype: str) -> Tensor:
    """Convert a float32 array to a stored tensor of type f32, f16 or bf16."""
    array = np.ascontiguousarray(array, dtype="<f4")
    if dtype == "f32":
        data = array.tobytes()
    elif dtype == "f16":
        data = array.astype("<f2").tobytes()
    elif dtype == "bf16":
        # numpy has no bfloat16: it is the upper half of a float32, rounded to
        # nearest, ties to even.  Weights are finite, so no NaN to look after.
        bits = array.view("<u4").astype(np.uint64)
        bits += 0x7FFF + ((bits >> 16) & 1)
        data = (bits >> 16).astype("<u2").tobytes()
    else:
        raise ValueError(f"unknown dtype {dtype!r}")
    return Tensor(dtype.upper(), array.shape, data)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace path in one step, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file: u64 length, JSON header, then the data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces after the header are allowed; they put the data on a multiple of 8
    # so that a program that maps the file can use it in place.
    text += b" " * (-len(text) % 8)
    parts = [struct.pack("<Q", len(text)), text]
    parts += [tensor.data for tensor in tensors.values()]
    write_atomically(path, b"".join(parts))


def read_safetensors(path: Path) -> dict:
    """Read a file: u64 header length, JSON header, then the tensors' bytes."""
    import torch

    stored = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
              "BF16": torch.bfloat16}
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        # A bytearray, because torch wants memory it could write to.
        flat = torch.frombuffer(bytearray(raw[begin:end]), dtype=stored[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors
