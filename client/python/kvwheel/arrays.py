# SPDX-License-Identifier: Apache-2.0
"""Rows of the cache as arrays: numpy, DLPack (torch and others), and what callers give.

`Rows` is memory of the cache with a shape. It can be handed on without a copy: numpy
takes it by np.asarray(rows), everything else by its from_dlpack(rows). What is made so
keeps the rows' pin for as long as it lives. numpy knows no bf16: there, rows of bf16 are
their bits as uint16; torch gets bfloat16.
"""

import ctypes as c
import sys
from typing import Any, Dict, Optional, Tuple

import numpy as np

NUMPY_TYPES: Dict[str, Any] = {
    "f32": np.dtype(np.float32), "bf16": np.dtype(np.uint16), "f16": np.dtype(np.float16),
    "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "u32": np.dtype(np.uint32),
}
ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1, "u8": 1, "u32": 4}
_TYPE_OF_NUMPY = {dtype: name for name, dtype in NUMPY_TYPES.items() if name != "bf16"}
_TYPE_OF_TORCH = {"torch.float32": "f32", "torch.bfloat16": "bf16", "torch.float16": "f16",
                  "torch.int8": "i8", "torch.uint8": "u8", "torch.uint32": "u32",
                  "torch.int32": "u32"}


# DLPack: dlpack.h of the project of that name, versions 0 and 1 ------------------------

_CPU = 1
_CODES = {"f32": (2, 32), "bf16": (4, 16), "f16": (2, 16), "i8": (0, 8), "u8": (1, 8),
          "u32": (1, 32)}
_READ_ONLY = 1


class _DLDevice(c.Structure):
    _fields_ = [("device_type", c.c_int32), ("device_id", c.c_int32)]


class _DLDataType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class _DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device", _DLDevice), ("ndim", c.c_int32),
                ("dtype", _DLDataType), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class _DLManagedTensor(c.Structure):
    pass


_DELETER = c.CFUNCTYPE(None, c.c_void_p)
_DLManagedTensor._fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", c.c_void_p),
                             ("deleter", _DELETER)]


class _DLManagedTensorVersioned(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("manager_ctx", c.c_void_p),
                ("deleter", _DELETER), ("flags", c.c_uint64), ("dl_tensor", _DLTensor)]


# What a consumer holds, by address, until it calls the deleter.
_lent: Dict[int, tuple] = {}


@_DELETER
def _end_loan(address: int, _lent: Dict[int, tuple] = _lent) -> None:
    _lent.pop(address, None)


_capsule_is = c.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = c.c_int, [c.c_void_p, c.c_char_p]


@c.PYFUNCTYPE(None, c.c_void_p)
def _end_capsule(capsule: int, _lent: Dict[int, tuple] = _lent, _is: Any = _capsule_is,
                 _get: Any = c.PYFUNCTYPE(c.c_void_p, c.c_void_p, c.c_char_p)(
                     ("PyCapsule_GetPointer", c.pythonapi))) -> None:
    """A capsule that nobody took: the name of one that was taken is another."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _is(capsule, name):
            _lent.pop(_get(capsule, name), None)


# Consumers and capsules may outlive this module, at the end of the interpreter.
for _callback in (_end_loan, _end_capsule):
    c.pythonapi.Py_IncRef(c.py_object(_callback))

_new_capsule = c.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]


class Rows:
    """Memory of the cache as an array; see the module. `hold` is what keeps it valid."""

    __slots__ = ("address", "shape", "strides", "type", "readonly", "_hold", "__weakref__")

    def __init__(self, address: int, shape: Tuple[int, ...], strides: Tuple[int, ...],
                 type: str, readonly: bool, hold: Any) -> None:
        self.address, self.shape, self.strides = address, shape, strides  # strides: bytes
        self.type, self.readonly = type, readonly
        self._hold = hold
        hold.add(id(self))

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)
        if hold is not None:
            hold.discard(id(self))

    @property
    def __array_interface__(self) -> dict:
        return {"version": 3, "data": (self.address, self.readonly), "shape": self.shape,
                "strides": self.strides, "typestr": NUMPY_TYPES[self.type].str}

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (_CPU, 0)

    def __dlpack__(self, *, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None,
                   copy: Optional[bool] = None) -> Any:
        """A capsule. To a consumer of DLPack 1 it says that rows are read-only where they
        are; older ones have no word for it, and torch makes tensors that nothing keeps
        from being written: rows of a reader's view then fault, they are mapped so."""
        if dl_device not in (None, (_CPU, 0)) or copy:
            raise BufferError("rows of the cache are lent where they lie, not copied")
        item = ITEM_BYTES[self.type]
        n = len(self.shape)
        shape = (c.c_int64 * n)(*self.shape)
        strides = (c.c_int64 * n)(*(stride // item for stride in self.strides))
        code, bits = _CODES[self.type]
        tensor = _DLTensor(self.address, _DLDevice(_CPU, 0), n, _DLDataType(code, bits, 1),
                           shape, strides, 0)
        if max_version is not None and max_version[0] >= 1:
            managed: Any = _DLManagedTensorVersioned(
                1, 0, None, _end_loan, _READ_ONLY if self.readonly else 0, tensor)
            name = b"dltensor_versioned"
        else:
            managed, name = _DLManagedTensor(tensor, None, _end_loan), b"dltensor"
        address = c.addressof(managed)
        _lent[address] = (managed, shape, strides, self)
        return _new_capsule(address, name, c.cast(_end_capsule, c.c_void_p))

    def numpy(self) -> np.ndarray:
        """A numpy array of this memory (bf16: its bits as uint16)."""
        return np.asarray(self)

    def torch(self) -> Any:
        """A torch tensor of this memory."""
        import torch
        return torch.utils.dlpack.from_dlpack(self)

    def __repr__(self) -> str:
        return f"Rows({'x'.join(map(str, self.shape))} {self.type}, address {self.address:#x})"


# What callers give ---------------------------------------------------------------------

class Given:
    """An array of the caller: address, shape, strides in bytes, type. `owner` keeps it."""

    __slots__ = ("address", "shape", "strides", "type", "owner")

    def __init__(self, address: int, shape: Tuple[int, ...], strides: Tuple[int, ...],
                 type: str, owner: Any) -> None:
        self.address, self.shape, self.strides = address, shape, strides
        self.type, self.owner = type, owner

    def lane(self, index: int) -> "Given":
        """One lane of [lanes, rows, heads, elems]."""
        return Given(self.address + index * self.strides[0], self.shape[1:],
                     self.strides[1:], self.type, self.owner)


def is_torch(value: Any) -> bool:
    """True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def like(array: np.ndarray, value: Any) -> Any:
    """The array, as a torch tensor if `value` is one."""
    if is_torch(value):
        import torch
        return torch.from_numpy(array)
    return array


def given(value: Any, what: str, type: Optional[str] = None) -> Given:
    """A numpy array, a torch tensor, or something that numpy makes an array of. Its rows
    may lie anywhere, the elements of a row of a head side by side; else it is copied.
    numpy's uint16 is bf16 where `type` says so."""
    if is_torch(value):
        value = value.detach()
        if value.device.type != "cpu":
            raise ValueError(f"{what}: need a tensor on the CPU, have {value.device}")
        if value.ndim and value.stride(-1) != 1 and value.shape[-1] > 1:
            value = value.contiguous()
        name = _TYPE_OF_TORCH.get(str(value.dtype))
        if name is None:
            raise ValueError(f"{what}: rows have no type {value.dtype}")
        item = ITEM_BYTES[name]
        return Given(value.data_ptr(), tuple(value.shape),
                     tuple(stride * item for stride in value.stride()), name, value)
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim and array.strides[-1] != array.itemsize and array.shape[-1] > 1:
        array = np.ascontiguousarray(array)
    name = _TYPE_OF_NUMPY.get(array.dtype)
    if name is None and array.dtype == np.uint16 and type in ("bf16", None):
        name = "bf16"
    if name is None:
        raise ValueError(f"{what}: rows have no type {array.dtype}")
    return Given(array.__array_interface__["data"][0], array.shape, array.strides, name, array)

