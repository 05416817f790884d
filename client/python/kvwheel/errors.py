# SPDX-License-Identifier: Apache-2.0
"""What calls raise: one class per answer of kvwheel.h, the library's words as its text."""

import errno

from . import _abi


class Error(OSError):
    """A call was refused or failed; it changed nothing. `errno` is kvwheel.h's number."""


class Invalid(Error, ValueError):
    """A number, name or shape is not what is needed (EINVAL, E2BIG)."""


class NotFound(Error, KeyError):
    """No such cache, preset, group or layer (ENOENT)."""

    __str__ = OSError.__str__  # KeyError's would show the repr


class OutOfRange(Error, IndexError):
    """A layer, lane or row is not this rank's, or cannot be reached any more (ERANGE)."""


class Full(Error):
    """A group of policy `refuse`, or the keep extent, has no room (ENOSPC)."""


class Busy(Error):
    """A pin is in the way, or a live process holds what is asked for (EBUSY)."""


class TimedOut(Error, TimeoutError):
    """Somebody did not come in time; the text says who (ETIMEDOUT)."""


class OwnerDied(Error):
    """The process that was waited for died (EOWNERDEAD)."""


class Denied(Error, PermissionError):
    """A reader cannot write; or no permission (EACCES)."""


class NoMemory(Error, MemoryError):
    """The node has not got the memory, or the quota is used up (ENOMEM, EDQUOT)."""


class Stale(Error):
    """A recovery is under way, or the rank has another owner (ESTALE)."""


class Overrun(Error):
    """Rows of a view were overwritten or taken back while it was held: what was read may
    be wrong (KVW_EOVERRUN)."""


class Diverged(Error):
    """Ranks published different steps of one number (KVW_EDIVERGED)."""


class Incomplete(Error):
    """commit: a layer has rows that were not written (KVW_EINCOMPLETE)."""


class Gone(Error):
    """The cache was removed (KVW_EGONE)."""


class OtherVersion(Error):
    """The daemon or the cache has another protocol or layout version (KVW_ELAYOUT)."""


class Forked(RuntimeError):
    """This process is a fork of the one that connected: it must connect for itself."""


class OverrunWarning(UserWarning):
    """As Overrun, of a view that ended where nothing could be raised."""


_CLASSES = {
    errno.EINVAL: Invalid,
    errno.E2BIG: Invalid,
    errno.ENOENT: NotFound,
    errno.ERANGE: OutOfRange,
    errno.ENOSPC: Full,
    errno.EBUSY: Busy,
    errno.ETIMEDOUT: TimedOut,
    errno.EOWNERDEAD: OwnerDied,
    errno.EACCES: Denied,
    errno.ENOMEM: NoMemory,
    errno.EDQUOT: NoMemory,
    errno.ESTALE: Stale,
    _abi.EOVERRUN: Overrun,
    _abi.EDIVERGED: Diverged,
    _abi.EINCOMPLETE: Incomplete,
    _abi.EGONE: Gone,
    _abi.ELAYOUT: OtherVersion,
}


def of(number: int, text: str) -> Error:
    """The exception for an answer of the library (negative) and its words."""
    return _CLASSES.get(-number, Error)(-number, text)
