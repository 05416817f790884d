# SPDX-License-Identifier: Apache-2.0
"""Rolling attention of autoregressive video: see VideoCache."""

import os
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import torch

from ..client import Client
from ..spec import Group, Spec, kv_planes
from .base import Container, KVLayer, type_of

SINKS = ("keep", "drop", "recompute")


class CrossLayer(KVLayer):
    """K and V of the prompt: written once for each prompt, which is known by its epoch, not
    by what the bytes look like."""

    @property
    def is_filled(self) -> bool:
        """K and V of the present prompt are there."""
        with self.view() as views:
            return all(view.n_rows > 0 for view in views)

    def get(self) -> Optional[Tuple[torch.Tensor, torch.Tensor]]:  # type: ignore[override]
        """K and V of the present prompt; None: not written yet."""
        views = self.view()
        if not all(view.n_rows > 0 for view in views):
            return None
        return views.tensor("k"), views.tensor("v")


class Cross:
    """cache.cross: the layers of the prompt."""

    def __init__(self, container: "VideoCache") -> None:
        self._layers = [CrossLayer(container, container._shared_layer("cross", number))
                        for number in range(container.n_layers)]

    def __getitem__(self, number: int) -> CrossLayer:
        return self._layers[number]


class VideoCache(Container):
    """A rolling window of frames for every layer, and the prompt's K and V.

        position = cache.begin()              # where the chunk's first token is
        for pass_ in passes:                  # denoising, and the clean one last
            for layer, block in enumerate(model):
                k, v = cache[layer].update(k, v)
                if cache.cross[layer].get() is None:
                    cache.cross[layer].update(text_k, text_v)
        cache.commit()

    Lengths are in frames; a frame is `frame_rows` tokens, `text_rows` are the most of a
    prompt. The window counts the sink and the chunk itself.

    positions `absolute`: keys are stored as they are given, rotated at begin()'s position.
    positions `window`: keys are stored raw; rotate what update() returns at
    cache[layer].positions, which never grow over the window, and q at begin()'s.
    rank, ranks: heads are split over so many processes; tensors have this rank's.
    """

    def __init__(self, layers: int, batch: int, heads: int, head_dim: int, frame_rows: int,
                 window: int, chunk: int = 3, sink: int = 0, keep: int = 0,
                 text_rows: int = 512, dtype: Union[str, torch.dtype] = torch.float32,
                 positions: str = "absolute", contiguous: bool = True,
                 name: Optional[str] = None, client: Optional[Client] = None, rank: int = 0,
                 ranks: int = 1) -> None:
        planes = kv_planes(type_of(dtype), head_dim, rotated=positions == "absolute")
        self.n_layers, self.frame_rows, self.chunk = layers, frame_rows, chunk
        self._sink = sink * frame_rows
        super().__init__(Spec(name or f"video-{os.getpid()}-{id(self):x}", [
            Group("self", layers, heads, planes=planes, window=window * frame_rows,
                  chunk=chunk * frame_rows, sink=self._sink, keep=keep * frame_rows,
                  positions=positions, contiguous=contiguous),
            Group("cross", layers, heads, window=text_rows, chunk=text_rows, policy="refuse",
                  planes=kv_planes(type_of(dtype), head_dim, rotated=False)),
        ], lanes=batch, head_parts=ranks), client, rank)
        self.cross = Cross(self)
        self.is_absolute = positions == "absolute"
        self.epoch = 0
        # Absolute positions: rows from `first` on are at row + offset (a switch or a jump
        # makes them differ); ascending.
        self._offsets: List[Tuple[int, int]] = [(0, 0)]

    @property
    def frames(self) -> int:
        """Frames so far: the number of the next one."""
        return self._absolute(self._state("self").rows) // self.frame_rows

    def _absolute(self, row: int) -> int:
        return row + next(offset for first, offset in reversed(self._offsets) if first <= row)

    def positions_of(self, rows: Any, positions: Any) -> Any:
        if not self.is_absolute or self._offsets == [(0, 0)]:
            return positions
        return np.array([self._absolute(int(row)) for row in rows], np.int64)

    def begin(self, frames: Optional[int] = None) -> int:
        """Open a chunk (default: `chunk` frames; the first one of a video may be shorter).
        What leaves the window is evicted now; the answer is the position (in tokens) to
        rotate the chunk's first queries and keys at."""
        n = (self.chunk if frames is None else frames) * self.frame_rows
        begun = self.shared.begin(n, epoch=self.epoch)["self"]
        return self._absolute(begun.row) if self.is_absolute else begun.position

    def reset_state(self) -> None:
        super().reset_state()
        self._offsets = [(0, 0)]

    def restart(self) -> None:
        """Forget the window, not the prompt: positions begin at 0 again (Krea: before each
        block, which then re-caches its context)."""
        self.shared.reset("self", epoch=self.epoch)
        self._offsets = [(0, 0)]

    def evict_to_last(self, frames: int) -> None:
        """Leave the sink and the last `frames` frames (infinity-RoPE's flush)."""
        rows = self._state("self").rows
        self.shared.evict({"self": max(rows - frames * self.frame_rows, 0)})

    def keep_last(self, frames: Optional[int] = None) -> None:
        """Keep the last chunk (the first `frames` frames of it) as a further sink: it stays
        when it leaves the window (LongLive 2, at a scene cut)."""
        rows = self._state("self").rows
        first = rows - self.chunk * self.frame_rows
        self.shared.keep(first, (self.chunk if frames is None else frames) * self.frame_rows,
                         group="self")

    def drop_kept(self, first_frame: int) -> None:
        """Let go of what keep_last() kept from that frame on."""
        self.shared.keep(first_frame * self.frame_rows, 0, group="self")

    def jump(self, frames: int) -> None:
        """Advance the positions of all chunks to come (LongLive 2: a phase for each shot)."""
        if not self.is_absolute:
            raise ValueError("jump: positions are those in the window")
        row = self._state("self").rows
        self._set_offset(row, self._absolute(row) - row + frames * self.frame_rows)

    def _set_offset(self, row: int, offset: int) -> None:
        self._offsets = [old for old in self._offsets if old[0] < row] + [(row, offset)]

    def switch(self, sink: str = "keep", context: int = 0) -> List[range]:
        """A new prompt: the K and V of the old one's text go, and its epoch.

        sink: what becomes of the first frames, which are of the old prompt. `keep`: they
            stay. `drop`: they go, the next rows are the sink. `recompute`: they are run
            again under the new prompt.
        context: frames before now to run again under the new prompt in place of the window
            (LongLive's re-cache). 0: the window stays (only with sink `keep`).

        Returns the chunks to run again, as ranges of frames: for each, in order, begin() of
        so many frames, one clean pass over their latents, commit()."""
        if sink not in SINKS:
            raise ValueError(f"sink: need one of {', '.join(SINKS)}, have {sink!r}")
        if context == 0 and sink != "keep":
            raise ValueError(f"sink {sink}: need a context to run again, for rows are never "
                             "moved: a window cannot stay without its sink")
        size, now = self.frame_rows, self.frames
        first = min(max(now - context, self._sink // size if sink != "drop" else 0), now)
        self.epoch += 1
        self.shared.reset("cross", epoch=self.epoch)
        if context == 0:
            return []
        offset = first * size
        if sink == "keep":
            kept = min(self._sink, self._state("self").rows)
            self.shared.truncate({"self": kept}, epoch=self.epoch)
            self._set_offset(kept, offset - kept)
            return self._chunks(first, now)
        self.shared.reset("self", epoch=self.epoch)
        if sink == "drop":
            self._offsets = [(0, offset)]
            return self._chunks(first, now)
        head = min(self._sink // size, now)
        self._offsets = [(0, 0)]
        if offset > self._sink:
            self._offsets.append((self._sink, offset - self._sink))
        return self._chunks(0, head) + self._chunks(max(first, head), now)

    def _chunks(self, first: int, end: int) -> List[range]:
        return [range(at, min(at + self.chunk, end)) for at in range(first, end, self.chunk)]

    def stats(self) -> Dict[str, int]:
        """Bytes that were copied to make one tensor of several pieces."""
        return {"gathers": self.shared.stats.gathers,
                "gather_bytes": self.shared.stats.gather_bytes}


