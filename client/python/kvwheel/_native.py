# SPDX-License-Identifier: Apache-2.0
"""Finding, loading and calling libkvwheel and libkvwheel_kernels.

Folders are searched in this order: those of KVWHEEL_LIBRARY_DIR (separated by colons);
`lib` beside this file (a wheel has its libraries there); the builds of a source tree in
which this file lies (release, dev, clang: the first that is there); the lib folders of
the prefix in which it is installed; and where the system's loader looks.
"""

import ctypes as c
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import _abi, errors

_HERE = Path(__file__).resolve().parent
_BUILDS = ("release", "dev", "clang")
_LIBRARIES = {"kvwheel": "client", "kvwheel_kernels": "kernels"}  # and where a build has it


def _folders(name: str) -> Iterator[Path]:
    for folder in os.environ.get("KVWHEEL_LIBRARY_DIR", "").split(":"):
        if folder:
            yield Path(folder)
    yield _HERE / "lib"
    if _HERE.parent.name == "python" and _HERE.parent.parent.name == "client":
        for build in _BUILDS:
            yield _HERE.parents[2] / "build" / build / _LIBRARIES[name]
    for prefix in _HERE.parents:  # PREFIX/lib/python3/dist-packages/kvwheel
        if prefix.name in ("lib", "lib64"):
            yield prefix
            yield from sorted(prefix.glob("*-linux-gnu"))
            break


def _load(name: str) -> c.CDLL:
    file = f"lib{name}.so.0"
    looked = []
    for folder in _folders(name):
        looked.append(str(folder))
        if (folder / file).exists():
            return c.CDLL(str(folder / file))
    try:
        return c.CDLL(file)
    except OSError as error:
        raise ImportError(
            f"{file} was not found: not in {', '.join(looked)}, and the system's loader "
            f"says: {error}. Build the tree (cmake --workflow or deploy/quickstart.sh), or set "
            "KVWHEEL_LIBRARY_DIR to the folder that has it."
        ) from None


# Calls that return 0, a count, or a negative answer. p: pointer, s: string.
_P, _S, _U32, _U64, _INT = c.c_void_p, c.c_char_p, c.c_uint32, c.c_uint64, c.c_int
_LAYER = _abi.kvw_layer
_CALLS: Dict[str, List[Any]] = {
    "spec_check": [_P],
    "spec_size": [_P, _P],
    "spec_preset": [_P, _S, _U64],
    "spec_config": [_P, _S, _U32, _U64],
    "connect": [_S, _P],
    "create": [_P, _P, _P, _P],
    "remove": [_P, _S, _INT],
    "attach": [_P, _S, _U32, _P, _P],
    "cache_part": [_P, _U32, _U32, _P],
    "bind_self": [_P],
    "layer_at": [_P, _U32, _P],
    "layer_of": [_P, _S, _U32, _P],
    "begin": [_P, _U32, _P, _U32, _P],
    "update": [_P, _U32, _LAYER, _U64, _U64, _P],
    "slots": [_P, _U32, _LAYER, _U64, _U64, _P],
    "written": [_P, _U32, _LAYER, _U64, _U64],
    "commit": [_P, _U32, _P, _U32],
    "abort": [_P, _U32],
    "get": [_P, _U32, _LAYER, _U32, _P],
    "cut": [_P, _U32, _LAYER, _U64, _U32, _P],
    "release": [_P, _P],
    "wait_written": [_P, _U32, _U32, _LAYER, _U32, _U64],
    "have_read": [_P, _U32, _LAYER, _U32],
    "wait_read": [_P, _U32, _U32, _LAYER, _U32, _U64],
    "truncate": [_P, _U32, _P, _U32],
    "evict": [_P, _U32, _P, _U32],
    "keep": [_P, _U32, _P, _U32],
    "reset": [_P, _U32, _P, _U32],
    "reset_layer": [_P, _U32, _LAYER],
    "reset_state": [_P],
    "lowest": [_P, _U32, _U32, _P],
    "state": [_P, _U32, _U32, _P],
    "wait_step": [_P, _U32, _U32, _U64, _U64],
    "wait_rows": [_P, _U32, _U32, _U32, _U64, _U64],
    "recover": [_P, _U32, _U64, _P],
    "verify": [_P, _P, _P, _P],
}
_OTHERS: Dict[str, Tuple[Any, List[Any]]] = {
    "last_error": (_S, []),
    "strerror": (_S, [_INT]),
    "version": (_S, []),
    "spec_init": (None, [_P, _S]),
    "spec_preset_name": (_S, [_U32]),
    "disconnect": (None, [_P]),
    "detach": (None, [_P]),
    "cache_spec": (_P, [_P]),
}
# Calls of a microsecond that wait for nothing: giving the interpreter's lock away and
# taking it again would cost more than they do.
_QUICK = {"slots", "written", "abort", "get", "cut", "release", "have_read", "state",
          "last_error", "strerror"}
_KERNELS: Dict[str, Tuple[Any, List[Any]]] = {
    "attn_run": (_INT, [_P]),
    "rope_fill": (_INT, [_P]),
    "rope_fill_grid": (_INT, [_P]),
    "rope_apply": (_INT, [_P]),
    "linear_update": (_INT, [_P]),
    "linear_use": (_INT, [_P]),
    "rows_convert": (_INT, [_P]),
}


class Library:
    """The functions of libkvwheel and of the kernels, without their prefix kvw_."""

    def __init__(self) -> None:
        main, kernels = _load("kvwheel"), _load("kvwheel_kernels")
        quick = c.PyDLL(None, handle=main._handle)
        self._keep = (main, kernels, quick)
        for name, arguments in _CALLS.items():
            self._bind(quick if name in _QUICK else main, name, _INT, arguments)
        for name, (answer, arguments) in _OTHERS.items():
            self._bind(quick if name in _QUICK else main, name, answer, arguments)
        for name, (answer, arguments) in _KERNELS.items():
            self._bind(kernels, name, answer, arguments)

    def _bind(self, library: Any, name: str, result: Any, arguments: list) -> None:
        function = library[f"kvw_{name}"]
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for type checkers; _bind has set all
        raise AttributeError(name)


lib = Library()

_version = lib.version().decode()
if _version.split(".")[:2] != [str(_abi.VERSION_MAJOR), str(_abi.VERSION_MINOR)]:
    raise ImportError(
        f"this kvwheel package is for libkvwheel {_abi.VERSION_MAJOR}.{_abi.VERSION_MINOR}, "
        f"the library that was found is {_version}"
    )


def check(result: int) -> int:
    """The result of a call, or its answer raised."""
    if result < 0:
        raise errors.of(result, lib.last_error().decode(errors="replace") or strerror(result))
    return result


def strerror(number: int) -> str:
    return lib.strerror(number).decode(errors="replace")


def nanoseconds(seconds: Optional[float]) -> int:
    """A timeout of the library; None: no deadline."""
    if seconds is None:
        return _abi.NO_TIMEOUT
    if not seconds >= 0:
        raise ValueError(f"a timeout: need seconds >= 0, or None, have {seconds}")
    return min(int(seconds * 1e9), _abi.NO_TIMEOUT - 1)
