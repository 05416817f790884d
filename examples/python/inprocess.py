# SPDX-License-Identifier: Apache-2.0
"""Caches as models keep them inside one process: plain torch, rolled by copying. The same
calls as kvwheel.families, which they are compared with; what each does is what the public
implementations of its family do."""

import torch


class VideoCache:
    """Self-Forcing's buffer: past rows move down when it is full, the sink stays; with
    LongLive 2's pinned chunk and LongLive's prompt switch."""

    def __init__(self, layers, batch, heads, head_dim, frame_rows, window, chunk=3, sink=0,
                 keep=0, text_rows=512, dtype=torch.float32, positions="absolute", **_):
        self.frame_rows, self.chunk, self.sink = frame_rows, chunk, sink * frame_rows
        self.is_absolute = positions == "absolute"
        shape = (batch, window * frame_rows, heads, head_dim)
        self.layers = [_VideoLayer(self, shape, dtype) for _ in range(layers)]
        self.cross = [_CrossLayer() for _ in range(layers)]
        self.reset_state()

    def __getitem__(self, layer):
        return self.layers[layer]

    def reset_state(self):
        self.restart()
        for layer in self.cross:
            layer.kv = None

    def restart(self):
        """Forget the window, not the prompt."""
        self.position = self.rows = 0
        for layer in self.layers:
            layer.global_end = layer.local_end = 0
            layer.pinned = []

    @property
    def frames(self):
        return self.position // self.frame_rows

    def begin(self, frames=None):
        if isinstance(frames, range):  # to be run again, where they were
            self.position, frames = frames.start * self.frame_rows, len(frames)
        n = (self.chunk if frames is None else frames) * self.frame_rows
        self.open = n
        if self.is_absolute:
            return self.position
        layer = self.layers[0]  # the indices are the same in every layer
        past = min(layer.local_end, layer.size - n)
        first = layer.row[layer.local_end - (past - self.sink)] if past > self.sink else self.rows
        return past + sum(len(row) for _, _, row, _ in layer.pinned if row[0] < first)

    def commit(self):
        self.rows += self.open
        self.position += self.open

    def evict_to_last(self, frames):
        n = frames * self.frame_rows
        for layer in self.layers:
            layer.cut(n)

    def keep_last(self, frames=None):
        n = (self.chunk if frames is None else frames) * self.frame_rows
        for layer in self.layers:
            layer.pin(self.chunk * self.frame_rows, n)

    def jump(self, frames):
        self.position += frames * self.frame_rows

    def switch(self, sink="keep", context=0):
        for layer in self.cross:
            layer.kv = None
        if context == 0:
            return []
        now, head = self.frames, self.sink // self.frame_rows
        first = max(now - context, head if sink != "drop" else 0)
        plan = [range(i, min(i + self.chunk, now)) for i in range(first, now, self.chunk)]
        kept = min(self.sink, self.rows) if sink == "keep" else 0
        self.rows = kept
        for layer in self.layers:
            layer.global_end = layer.local_end = kept
            layer.pinned = []
        self.position = first * self.frame_rows
        if sink == "recompute":
            plan = [range(i, min(i + self.chunk, head)) for i in range(0, head, self.chunk)] + plan
        return plan


class _VideoLayer:
    def __init__(self, cache, shape, dtype):
        self.cache, self.size = cache, shape[1]
        self.k, self.v = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.row = torch.zeros(self.size, dtype=torch.int64)  # of the sequence
        self.at = torch.zeros(self.size, dtype=torch.int64)  # absolute position

    def update(self, k, v):
        sink, n = self.cache.sink, k.shape[1]
        end = self.cache.rows + n
        over = n + self.local_end - self.size
        local_end = self.local_end + end - self.global_end
        if end > self.global_end and over > 0:
            for buffer in (self.k, self.v):
                kept = buffer[:, sink + over : self.local_end].clone()
                buffer[:, sink : self.local_end - over] = kept
            for buffer in (self.row, self.at):
                kept = buffer[sink + over : self.local_end].clone()
                buffer[sink : self.local_end - over] = kept
            local_end -= over
        self.k[:, local_end - n : local_end], self.v[:, local_end - n : local_end] = k, v
        self.row[local_end - n : local_end] = torch.arange(self.cache.rows, end)
        self.at[local_end - n : local_end] = torch.arange(n) + self.cache.position
        self.global_end, self.local_end = end, local_end
        return self.get()

    def cut(self, n):
        """The sink and the last n rows."""
        sink = min(self.cache.sink, self.local_end)
        n = min(n, self.local_end - sink)
        for buffer in (self.k, self.v):
            buffer[:, sink : sink + n] = buffer[:, self.local_end - n : self.local_end].clone()
        for buffer in (self.row, self.at):
            buffer[sink : sink + n] = buffer[self.local_end - n : self.local_end].clone()
        self.local_end = sink + n

    def pin(self, back, n):
        part = slice(self.local_end - back, self.local_end - back + n)
        self.pinned.append((self.k[:, part].clone(), self.v[:, part].clone(),
                            self.row[part].clone(), self.at[part].clone()))

    def _parts(self):
        """Sink, pinned chunks that left the window, window."""
        sink, end = min(self.cache.sink, self.local_end), self.local_end
        first = self.row[sink] if end > sink else 0
        out = [pin for pin in self.pinned if end > sink and pin[2][0] < first]
        return ([(self.k[:, :sink], self.v[:, :sink], self.row[:sink], self.at[:sink])] + out
                + [(self.k[:, sink:end], self.v[:, sink:end], self.row[sink:end],
                    self.at[sink:end])])

    def get(self):
        parts = self._parts()
        return (torch.cat([part[0] for part in parts], 1),
                torch.cat([part[1] for part in parts], 1))

    @property
    def positions(self):
        parts = self._parts()
        if self.cache.is_absolute:
            return torch.cat([part[3] for part in parts])
        return torch.arange(sum(len(part[2]) for part in parts))

    def bias(self, of):
        parts = self._parts()
        rows = torch.cat([part[2] for part in parts])
        bias = torch.full((len(rows),), of.get("past", 0.0))
        bias[: len(parts[0][2])] = of.get("sink", 0.0)
        at = len(parts[0][2])
        for part in parts[1:-1]:
            bias[at : at + len(part[2])] = of.get("kept", 0.0)
            at += len(part[2])
        bias[rows >= self.cache.rows] = of.get("current", 0.0)
        return bias

    def reset(self):
        self.global_end = self.local_end = 0


class _CrossLayer:
    kv = None

    def get(self):
        return self.kv

    def update(self, k, v):
        self.kv = (k.clone(), v.clone())
        return self.kv


class LinearCache:
    """LongSANA's list over chunks of list over layers."""

    def __init__(self, layers, batch, heads, head_dim, tail_elems, blocks, **_):
        self.blocks, self.zero = blocks, (torch.zeros(batch, heads, head_dim, head_dim),
                                          torch.zeros(batch, heads, head_dim))
        self.layers = [_LinearLayer(self) for _ in range(layers)]
        self.reset_state()

    def __getitem__(self, layer):
        return self.layers[layer]

    def reset_state(self):
        self.frame, self.ends = 0, []
        for layer in self.layers:
            layer.chunks = []

    def begin(self):
        return self.frame

    def commit(self, frames):
        self.frame += frames
        self.ends.append(self.frame)

    def rewind(self):
        self.ends.pop()
        self.frame = self.ends[-1] if self.ends else 0
        for layer in self.layers:
            layer.chunks.pop()
        return self.frame


class _LinearLayer:
    def __init__(self, cache):
        self.cache = cache

    def get(self):
        n, blocks = len(self.cache.ends), self.cache.blocks
        chunks = self.chunks[:n] if blocks is None else self.chunks[max(0, n - blocks) : n]
        vk, k_sum = self.cache.zero
        for chunk in chunks:
            vk, k_sum = vk + chunk[0], k_sum + chunk[1]
        return vk, k_sum, chunks[-1][2] if chunks else None

    def update(self, vk, k_sum, tail):
        del self.chunks[len(self.cache.ends) :]
        self.chunks.append((vk.clone(), k_sum.clone(), tail.clone()))


class ImageCache:
    """GLM-Image's lists: a tensor for each sample, which grows by concatenation."""

    def __init__(self, layers, samples=None, heads=None, head_dim=None, rows=None, **_):
        self.layers = [_ImageLayer(self) for _ in range(layers)]
        self.clear()

    def __getitem__(self, layer):
        return self.layers[layer]

    def set_mode(self, mode):
        self.mode = mode

    def next_sample(self):
        self.sample += 1

    def clear(self):
        self.mode, self.sample = None, 0
        for layer in self.layers:
            layer.samples = {}

    reset_state = clear


class _ImageLayer:
    def __init__(self, cache):
        self.cache = cache

    def update(self, k, v):
        if self.cache.mode == "write":
            old = self.samples.get(self.cache.sample)
            self.samples[self.cache.sample] = (k.clone(), v.clone()) if old is None else (
                torch.cat([old[0], k], 1), torch.cat([old[1], v], 1))
        if self.cache.mode != "read":
            return k, v
        repeat = len(k) // len(self.samples)
        cached = [torch.cat([sample[i] for sample in self.samples.values()])
                  .repeat_interleave(repeat, 0) for i in range(2)]
        return torch.cat([cached[0], k], 1), torch.cat([cached[1], v], 1)


class TextCache:
    """Every row of every layer, for ever, and a mask for those that slide. `streaming`:
    StreamingLLM's buffer of sink and recent rows, positions by index."""

    def __init__(self, layers, sink=0, streaming=False):
        self.sink, self.streaming = sink, streaming
        self.layers = [_TextLayer(self, window) for window in layers]
        self.reset_state()

    def __getitem__(self, layer):
        return self.layers[layer]

    def reset_state(self):
        self.rows = 0
        for layer in self.layers:
            layer.k = layer.v = None

    def begin(self, n):
        self.open = n
        return self.rows

    def commit(self, n=None):
        self.rows += self.open if n is None else n

    def rollback(self, rows):
        self.rows = rows


class _TextLayer:
    def __init__(self, cache, window):
        self.cache, self.window = cache, window
        self.k = self.v = None

    def update(self, k, v):
        n = self.cache.rows
        self.k = k.clone() if self.k is None else torch.cat([self.k[:, :n], k], 1)
        self.v = v.clone() if self.v is None else torch.cat([self.v[:, :n], v], 1)
        shown = self.shown()
        return self.k[:, shown], self.v[:, shown]

    def shown(self):
        rows = torch.arange(self.k.shape[1])
        if self.cache.streaming and self.window:
            rows = rows[(rows < self.cache.sink)
                        | (rows >= self.k.shape[1] - (self.window - self.cache.sink))]
        return rows

    def mask(self, n_queries):
        rows = self.shown()
        at = torch.arange(self.k.shape[1] - n_queries, self.k.shape[1])[:, None]
        seen = rows <= at
        if self.window:
            seen = seen & ((rows < self.cache.sink)
                           | (rows > at - (self.window - self.cache.sink)))
        return seen

    @property
    def positions(self):
        rows = self.shown()
        return torch.arange(len(rows)) if self.cache.streaming and self.window else rows
