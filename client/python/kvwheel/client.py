# SPDX-License-Identifier: Apache-2.0
"""The connection to a daemon, and an attachment as the rest of the package sees it."""

import ctypes as c
import errno
import os
import threading
import time
import warnings
import weakref
from collections import deque
from os import PathLike, fspath
from typing import Any, Callable, Deque, Optional, Union

from . import _abi, errors
from ._native import check, lib, nanoseconds, strerror
from .spec import Spec

WAIT_SLICE = 0.2  # seconds after which a wait looks whether somebody pressed Ctrl-C

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _forked() -> None:
    """Mappings do not cross a fork; a call with the parent's handles would ruin its state."""
    for client in list(_clients):
        client.is_forked = True
        client.lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Client:
    """A connection. Threads may share it: its calls take turns, waits included; use one
    client for each thread that waits. It is closed by close(), `with`, or its end."""

    def __init__(self, socket: Union[None, str, "PathLike[str]"] = None) -> None:
        self.handle = c.c_void_p()
        self.is_forked = False
        self.lock = threading.RLock()
        self._attachments: "weakref.WeakSet[Attachment]" = weakref.WeakSet()
        path = None if socket is None else fspath(socket).encode()
        check(lib.connect(path, c.byref(self.handle)))
        _clients.add(self)

    def live(self) -> c.c_void_p:
        """The handle, for a call."""
        if self.is_forked:
            raise errors.Forked("this process is a fork of the one that connected: it must "
                                "connect and attach for itself")
        if not self.handle:
            raise ValueError("the client is closed")
        return self.handle

    def create(self, spec: Spec, progress: Optional[Callable[[int, int], Any]] = None) -> bool:
        """Create a cache: placed, fully allocated. True; False if it was there already.
        progress(done_bytes, total_bytes) is called now and then."""
        call = _abi.kvw_progress_fn(0)
        if progress is not None:
            tell = progress
            call = _abi.kvw_progress_fn(lambda _, done, total: tell(done, total))
        with self.lock:
            return check(lib.create(self.live(), c.byref(spec.to_struct()), call, None)) == 0

    def remove(self, name: str, force: bool = False) -> None:
        """Remove a cache; `force`: even if somebody is attached."""
        with self.lock:
            check(lib.remove(self.live(), name.encode(), int(force)))

    def close(self) -> None:
        """Detach from all caches and disconnect. Raises BufferError while arrays or views
        show rows of one."""
        for attachment in list(self._attachments):
            attachment.detach()
        with self.lock:
            if self.handle and not self.is_forked:
                lib.disconnect(self.handle)
            self.handle = c.c_void_p()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        # Attachments keep the client: there is none any more, or they go in the same circle
        # of garbage, in any order; then this detaches them, and they look at the handle.
        if getattr(self, "handle", None) and not self.is_forked:
            lib.disconnect(self.handle)
            self.handle = c.c_void_p()


def connect(socket: Union[None, str, "PathLike[str]"] = None) -> Client:
    """Connect to a daemon: that of `socket`, of $KVWHEEL_SOCKET, or the user's, which is
    started if there is none."""
    return Client(socket)


class Stats:
    """What the package did that costs: gathers (copies that a view of several pieces needs
    to be one array) and conversions (rows given in another type than the plane's)."""

    __slots__ = ("gathers", "gather_bytes", "conversions", "conversion_bytes")

    def __init__(self) -> None:
        self.gathers = self.gather_bytes = self.conversions = self.conversion_bytes = 0

    def count(self, n_bytes: int) -> None:
        self.gathers += 1
        self.gather_bytes += n_bytes

    def __repr__(self) -> str:
        return (f"Stats(gathers={self.gathers}, gather_bytes={self.gather_bytes}, "
                f"conversions={self.conversions}, conversion_bytes={self.conversion_bytes})")


class Attachment:
    """A struct kvw_cache, kept while anything shows its memory."""

    def __init__(self, client: Client, name: str, rank: int, pin_policy: str,
                 timeout: Optional[float], spin_us: int,
                 owner_timeout: Optional[float] = 0.0) -> None:
        policy = _abi.PIN_POLICIES.get(pin_policy)
        if policy is None:
            raise ValueError(f"pin_policy: need one of {', '.join(_abi.PIN_POLICIES)}, "
                             f"have {pin_policy!r}")
        options = _abi.kvw_attach_options(c.sizeof(_abi.kvw_attach_options), policy,
                                          nanoseconds(timeout), spin_us)
        self.client, self.name = client, name
        self.handle = c.c_void_p()
        self.stats = Stats()
        self._views_held = 0
        self._ended: Deque[_abi.kvw_view] = deque()
        self._attach(rank, options, owner_timeout)
        client._attachments.add(self)

    def _attach(self, rank: int, options: _abi.kvw_attach_options,
                owner_timeout: Optional[float]) -> None:
        """Wait for the rank by slices, so that Ctrl-C works and others have the client."""
        nanoseconds(owner_timeout)  # refuses what is no time
        end = None if owner_timeout is None else time.monotonic() + owner_timeout
        while True:
            begin = time.monotonic()
            left = WAIT_SLICE if end is None else min(WAIT_SLICE, max(end - begin, 0))
            options.owner_timeout_ns = nanoseconds(left)
            with self.client.lock:
                answer = lib.attach(self.client.live(), self.name.encode(), rank,
                                    c.byref(options), c.byref(self.handle))
                now = time.monotonic()
                is_over = (end is not None and now >= end
                           or now - begin < left / 2)  # there is nobody to wait for
                if answer != -errno.EBUSY or is_over:
                    check(answer)
                    return

    def live(self) -> c.c_void_p:
        """The handle, for a call: views that ended meanwhile are released first."""
        if self.client.is_forked:
            self.client.live()
        if not self.handle:
            raise ValueError(f"cache '{self.name}' is detached")
        while self._ended:
            self._release_quietly(self._ended.popleft())
        return self.handle

    def held(self) -> None:
        """A view was taken."""
        self._views_held += 1

    def release(self, view: _abi.kvw_view) -> None:
        """End a view; raises Overrun."""
        with self.client.lock:
            self._views_held -= 1
            if self._is_live():
                check(lib.release(self.handle, c.byref(view)))

    def release_later(self, view: _abi.kvw_view) -> None:
        """End a view from wherever its last holder went: now if no other thread is in a
        call, else with the next call."""
        self._ended.append(view)
        if self.client.lock.acquire(blocking=False):
            try:
                while self._ended:
                    self._release_quietly(self._ended.popleft())
            finally:
                self.client.lock.release()

    def _release_quietly(self, view: _abi.kvw_view) -> None:
        self._views_held -= 1
        if not self._is_live():
            return
        answer = lib.release(self.handle, c.byref(view))
        if answer == -_abi.EOVERRUN:
            warnings.warn(f"cache '{self.name}': rows of a view of layer {view.layer} were "
                          "overwritten or taken back while it was held",
                          errors.OverrunWarning, stacklevel=3)
        elif answer < 0:
            warnings.warn(f"cache '{self.name}': release: {strerror(answer)}", stacklevel=3)

    def detach(self) -> None:
        """Forget the open chunk and unmap. Refuses while something shows the memory."""
        with self.client.lock:
            if not self._is_live():
                self.handle = c.c_void_p()
                return
            self.live()
            if self._views_held > 0:
                raise BufferError(f"cache '{self.name}': {self._views_held} views, or arrays "
                                  "made of them, are held")
            lib.detach(self.handle)
            self.handle = c.c_void_p()

    def _is_live(self) -> bool:
        return bool(getattr(self, "handle", None) and self.client.handle
                    and not self.client.is_forked)

    def __del__(self) -> None:
        # Views and arrays keep the attachment: there is none any more.
        if self._is_live():
            lib.detach(self.handle)
            self.handle = c.c_void_p()
