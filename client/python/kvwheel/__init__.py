# SPDX-License-Identifier: Apache-2.0
"""kvwheel: rolling KV caches that live outside the processes that generate.

    import kvwheel

    cache = kvwheel.RollingKVCache(preset="longlive-1.3b")   # starts a daemon if needed
    for chunk in chunks:
        begun = cache.begin(chunk.rows)                      # positions, before rotating
        for layer in range(len(cache)):
            cache[layer].update(k, v)                        # any number of passes
            with cache[layer].get() as view:                 # pieces of the shared memory
                out = kvwheel.attention(q, view)
        cache.commit()                                       # all layers at once

The calls are those of kvwheel.h, which is the manual; this package adds arrays (numpy,
DLPack, torch where it is there), pins that live as long as what shows their rows, and
classes for model families (kvwheel.families). A client and its caches may be used by
several threads, whose calls take turns. After a fork the child connects for itself.
"""

import sys

if sys.version_info < (3, 8):
    raise ImportError(f"kvwheel needs Python 3.8 or later; this is {sys.version.split()[0]}, "
                      f"{sys.executable}")
try:
    import numpy as _numpy  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"kvwheel needs numpy, and this Python has none: {sys.executable} "
        f"({sys.version.split()[0]}; {_error}). Debian's own, /usr/bin/python3, has it after "
        "`apt-get install python3-numpy` (and torch after python3-torch): run that one, or "
        "install numpy for this one.") from None

from ._native import lib as _lib
from .attention import attention
from .cache import MODES, READER, Lane, RollingKVCache
from .client import Client, Stats, connect
from .core import Begun, GroupState, LaneState
from .errors import (Busy, Denied, Diverged, Error, Forked, Full, Gone, Incomplete, Invalid,
                     NoMemory, NotFound, OtherVersion, OutOfRange, Overrun, OverrunWarning,
                     OwnerDied, Stale, TimedOut)
from .layer import Layer
from .linear import linear_attention, linear_sums
from .rope import Rope
from .spec import Bytes, Group, Plane, Spec, kv_planes
from .view import BatchView, Piece, Slots, View

__version__ = _lib.version().decode()

__all__ = [
    "MODES", "READER", "BatchView", "Begun", "Busy", "Bytes", "Client", "Denied", "Diverged",
    "Error", "Forked", "Full", "Gone", "Group", "GroupState", "Incomplete", "Invalid", "Lane",
    "LaneState", "Layer", "NoMemory", "NotFound", "OtherVersion", "OutOfRange", "Overrun",
    "OverrunWarning", "OwnerDied", "Piece", "Plane", "RollingKVCache", "Rope", "Slots", "Spec",
    "Stale", "Stats", "TimedOut", "View", "attention", "connect", "kv_planes", "linear_attention",
    "linear_sums",
]
