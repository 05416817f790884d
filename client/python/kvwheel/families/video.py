# SPDX-License-Identifier: Apache-2.0
"""Rolling attention of autoregressive video: see VideoCache."""

import os
from typing import Dict, List, Optional, Tuple, Union

import numpy as np
import torch

from ..client import Client
from ..layer import Layer
from ..spec import Group, Plane, Spec, kv_planes
from ..view import View
from .base import Container, KVLayer, batched, type_of

SINKS = ("keep", "drop", "recompute")


class AbsoluteLayer(KVLayer):
    """One layer of the window, whose rows are where the group `positions` says."""

    def __init__(self, layer: Layer, at: Layer) -> None:
        super().__init__(layer)
        self._at = at

    @property
    def positions(self) -> torch.Tensor:
        """The absolute position of each row that get() returns (of the first lane), int64."""
        with self.view() as views, batched(self._at.get()) as at:
            is_shown = np.isin(at[0].rows, views[0].rows)
            return torch.from_numpy(_positions(at[0])[is_shown])


def _positions(view: View) -> np.ndarray:
    return view.numpy("position")[:, 0, 0].astype(np.int64)


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

    def __init__(self, layers: List[Layer]) -> None:
        self._layers = [CrossLayer(layer) for layer in layers]

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

    All state is in the cache: whoever attaches to it by the same spec goes on where the last
    commit, switch or jump left it. A group `positions` goes along with the window and has
    the absolute position of each of its rows; its epoch, which every step publishes with
    its rows, is that of the next row.
    """

    def __init__(self, layers: int, batch: int, heads: int, head_dim: int, frame_rows: int,
                 window: int, chunk: int = 3, sink: int = 0, keep: int = 0,
                 text_rows: int = 512, dtype: Union[str, torch.dtype] = torch.float32,
                 positions: str = "absolute", contiguous: bool = True,
                 name: Optional[str] = None, client: Optional[Client] = None, rank: int = 0,
                 ranks: int = 1) -> None:
        self.n_layers, self.frame_rows, self.chunk = layers, frame_rows, chunk
        self._sink, self.is_absolute = sink * frame_rows, positions == "absolute"

        def rolling(group: str, n_layers: int, n_heads: int, planes: List[Plane]) -> Group:
            return Group(group, n_layers, n_heads, planes=planes, window=window * frame_rows,
                         chunk=chunk * frame_rows, sink=self._sink, keep=keep * frame_rows,
                         positions=positions, contiguous=contiguous)

        super().__init__(Spec(name or f"video-{os.getpid()}-{id(self):x}", [
            rolling("self", layers, heads, kv_planes(type_of(dtype), head_dim,
                                                     rotated=self.is_absolute)),
            Group("cross", layers, heads, window=text_rows, chunk=text_rows, policy="refuse",
                  planes=kv_planes(type_of(dtype), head_dim, rotated=False)),
            rolling("positions", 1, ranks, [Plane("position", "u32", 1)]),
        ], lanes=batch, head_parts=ranks), client, rank)
        self._at = self._shared_layer("positions", 0)
        self.cross = Cross([self._shared_layer("cross", number) for number in range(layers)])

    def _new_layer(self, number: int) -> KVLayer:
        layer = self._shared_layer("self", number)
        return AbsoluteLayer(layer, self._at) if self.is_absolute else KVLayer(layer)

    @property
    def frames(self) -> int:
        """Frames so far: the number of the next one."""
        return self._state("positions").epoch // self.frame_rows

    @property
    def epoch(self) -> int:
        """The number of the prompt: switch() counts."""
        return self._state("cross").epoch

    def begin(self, frames: Union[None, int, range] = None) -> int:
        """Open a chunk of so many frames (default: `chunk`; the first one of a video may be
        shorter), or of those that are to be run again, as switch() gives them. What leaves
        the window is evicted now; the answer is the position (in tokens) to rotate the
        chunk's first queries and keys at."""
        groups = self.shared.lane(self.shared.lanes[0]).state().groups
        epoch, position = groups["cross"].epoch, groups["positions"].epoch
        if isinstance(frames, range):
            position = frames.start * self.frame_rows
        n = ((self.chunk if frames is None else frames) if not isinstance(frames, range)
             else len(frames)) * self.frame_rows
        begun = self.shared.begin(n, epoch={"self": epoch, "cross": epoch,
                                            "positions": position + n})["self"]
        at = np.arange(position, position + n, dtype=np.uint32)[:, None, None]
        self._at.update(at if len(self._at.lanes) == 1
                        else np.broadcast_to(at, (len(self._at.lanes), n, 1, 1)))
        return position if self.is_absolute else begun.position

    def reset_state(self) -> None:
        """Start from nothing under the present prompt: the next video."""
        self.shared.reset(epoch={"positions": 0})
        self.shared.set_mode("write")

    def restart(self) -> None:
        """Forget the window, not the prompt: positions begin at 0 again (Krea: before each
        block, which then re-caches its context)."""
        self.shared.reset(["self", "positions"], epoch={"positions": 0})

    def evict_to_last(self, frames: int) -> None:
        """Leave the sink and the last `frames` frames (infinity-RoPE's flush)."""
        row = max(self._state("self").rows - frames * self.frame_rows, 0)
        self.shared.evict(row, ["self", "positions"])

    def keep_last(self, frames: Optional[int] = None) -> None:
        """Keep the last chunk (the first `frames` frames of it) as a further sink: it stays
        when it leaves the window (LongLive 2, at a scene cut)."""
        row = self._state("self").rows - self.chunk * self.frame_rows
        n = (self.chunk if frames is None else frames) * self.frame_rows
        self.shared.keep(row, n, ["self", "positions"])

    def drop_kept(self, first_frame: int) -> None:
        """Let go of what keep_last() kept from that frame on."""
        with batched(self._at.get(staged=False)) as views:
            rows = views[0].rows[_positions(views[0]) == first_frame * self.frame_rows]
        if not len(rows):
            raise ValueError(f"drop_kept: frame {first_frame} is not in the window, nor kept")
        self.shared.keep(int(rows[-1]), 0, ["self", "positions"])

    def jump(self, frames: int) -> None:
        """Advance the positions of all chunks to come (LongLive 2: a phase for each shot)."""
        if not self.is_absolute:
            raise ValueError("jump: positions are those in the window")
        state = self._state("positions")
        self.shared.truncate({"positions": state.rows}, epoch=state.epoch
                             + frames * self.frame_rows)  # none goes; the epoch is published

    def switch(self, sink: str = "keep", context: int = 0) -> List[range]:
        """A new prompt: the K and V of the old one's text go, and its epoch.

        sink: what becomes of the first frames, which are of the old prompt. `keep`: they
            stay. `drop`: they go, the next rows are the sink. `recompute`: they are run
            again under the new prompt.
        context: frames before now to run again under the new prompt in place of the window
            (LongLive's re-cache). 0: the window stays (only with sink `keep`).

        Returns the chunks to run again, as ranges of frames: for each, in order, begin() of
        that range, one clean pass over their latents, commit()."""
        if sink not in SINKS:
            raise ValueError(f"sink: need one of {', '.join(SINKS)}, have {sink!r}")
        if context == 0 and sink != "keep":
            raise ValueError(f"sink {sink}: need a context to run again, for rows are never "
                             "moved: a window cannot stay without its sink")
        size, now, epoch = self.frame_rows, self.frames, self.epoch + 1
        head = 0 if sink == "drop" else self._sink // size
        first = min(max(now - context, head), now)
        self.shared.reset("cross", epoch=epoch)
        if context == 0:
            return []
        epochs = {"self": epoch, "positions": first * size}
        if sink == "keep":
            kept = min(self._sink, self._state("self").rows)
            self.shared.truncate({"self": kept, "positions": kept}, epoch=epochs)
            return self._chunks(first, now)
        self.shared.reset(["self", "positions"], epoch=epochs)
        again = self._chunks(0, min(head, now)) if sink == "recompute" else []
        return again + self._chunks(first, now)

    def _chunks(self, first: int, end: int) -> List[range]:
        return [range(at, min(at + self.chunk, end)) for at in range(first, end, self.chunk)]
