# SPDX-License-Identifier: Apache-2.0
"""The Python side of `kvwheel-bench`'s cases `python`, `roll` and `kernels`, which start it as

    python3 -m kvwheel.bench CASE NAME

and says on stdin which variant to run how often; each line of stdout is an answer: first
`ready` and the variants' names, one a line, and an empty line; then for each order the
nanoseconds of each sample. NAME is that of the cache to make."""

import os
import sys
import time
from typing import Any, Callable, Dict, List

import numpy as np

import kvwheel

now = time.perf_counter_ns

# The geometry of bench/local.h: a row is 16 KiB of K and V in each layer.
LAYERS, HEADS, ELEMS, WINDOW, SLACK = 32, 32, 128, 256, 4

Variant = Callable[[int], List[int]]


def torch_or_none() -> Any:
    # Its threads must not spin while others are measured.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import torch
    except ImportError:
        return None
    return torch


class Calls:
    """Case `python`: update of one row in a layer, get and release, as bench/python.c does
    from C; a sample is those of one layer."""

    def __init__(self, name: str) -> None:
        planes = kvwheel.kv_planes("bf16", ELEMS)
        self.cache = kvwheel.RollingKVCache(spec=kvwheel.Spec(name, [kvwheel.Group(
            "self", LAYERS, HEADS, window=WINDOW, sink=4, chunk=1, slack=SLACK, planes=planes,
            window_kind="row")]))
        self.layers = [self.cache[i] for i in range(LAYERS)]
        self.array = np.full((1, HEADS, ELEMS), 0x3F80, np.uint16)
        self.tensor = None
        torch = torch_or_none()
        if torch is not None:
            self.tensor = torch.ones(1, HEADS, ELEMS, dtype=torch.bfloat16)
        for _ in range(2 * (WINDOW + SLACK)):
            self._chunk(self.array)

    def variants(self) -> Dict[str, Variant]:
        found = {"update + get + release, Python": lambda n: self._run(n, self.array)}
        if self.tensor is not None:
            found["update + get + release, Python, torch"] = lambda n: self._run(n, self.tensor)
        return found

    def _run(self, n: int, row: Any) -> List[int]:
        took: List[int] = []
        while len(took) < n:
            took += self._chunk(row)
        return took[:n]

    def _chunk(self, row: Any) -> List[int]:
        took = []
        self.cache.begin({"self": 1})
        for layer in self.layers:
            begun = now()
            layer.update(row, row)
            layer.get().release()
            took.append(now() - begun)
        self.cache.commit()
        return took


class Roll:
    """Case `roll`: a chunk of 3 frames comes into a full window of 21, in one layer of
    Self-Forcing 1.3B (480 x 832, bf16, K and V). A sample is one chunk: it is written once
    and the window is there as attention takes it."""

    FRAME, HEADS, ELEMS = 1560, 12, 128

    def __init__(self, name: str) -> None:
        torch = self.torch = torch_or_none()
        if torch is None:
            sys.exit("kvwheel.bench roll: it compares with torch, and this Python has none")
        self.n, self.window = 3 * self.FRAME, 21 * self.FRAME
        self.k, self.v = (torch.randn(1, self.n, self.HEADS, self.ELEMS).bfloat16()
                          for _ in range(2))
        self.cache = kvwheel.RollingKVCache(spec=kvwheel.Spec(name, [kvwheel.Group(
            "self", 1, self.HEADS, window=self.window, chunk=self.n,
            planes=kvwheel.kv_planes("bf16", self.ELEMS))]))
        self.old = {part: torch.zeros(1, self.window, self.HEADS, self.ELEMS,
                                      dtype=torch.bfloat16) for part in "kv"}
        self.cat = dict(self.old)
        self.temporary = self.old["k"][:, self.n :].clone()
        for _ in range(2 * 8):
            self.update()

    def variants(self) -> Dict[str, Variant]:
        found: Dict[str, Variant] = {
            "kvwheel, update": self._timed(self.update, 1),
            "kvwheel, written in place": self._timed(self.in_place, 1)}
        for threads in (1, 2):
            found[f"torch, clone + slice assignment, {threads} thread{'s'[:threads - 1]}"] = \
                self._timed(self.clone_and_assign, threads)
            found[f"torch.cat, {threads} thread{'s'[:threads - 1]}"] = \
                self._timed(self.concatenate, threads)
            found[f"torch, through a kept buffer, {threads} thread{'s'[:threads - 1]}"] = \
                self._timed(self.kept_buffer, threads)
        return found

    def _timed(self, work: Callable[[], None], threads: int) -> Variant:
        def run(n: int) -> List[int]:
            self.torch.set_num_threads(threads)
            took = []
            for _ in range(n):
                begun = now()
                work()
                took.append(now() - begun)
            return took
        return run

    def update(self) -> None:
        self.cache.begin({"self": self.n})
        self.cache[0].update(self.k[0], self.v[0])
        self.cache[0].get().release()
        self.cache.commit()

    def in_place(self) -> None:
        """The projection's kernel writes into the slots itself: what is left is the roll."""
        self.cache.begin({"self": self.n})
        self.cache[0].slots(self.n).written()
        self.cache[0].get().release()
        self.cache.commit()

    def clone_and_assign(self) -> None:
        """Self-Forcing: the kept rows move down by a temporary copy."""
        for part, new in (("k", self.k), ("v", self.v)):
            buffer = self.old[part]
            buffer[:, : -self.n] = buffer[:, self.n :].clone()
            buffer[:, -self.n :] = new

    def kept_buffer(self) -> None:
        """The same without what fresh memory costs: the floor of rolling by copy."""
        for part, new in (("k", self.k), ("v", self.v)):
            buffer = self.old[part]
            self.temporary.copy_(buffer[:, self.n :])
            buffer[:, : -self.n] = self.temporary
            buffer[:, -self.n :] = new

    def concatenate(self) -> None:
        """Drop the oldest rows and append the new ones."""
        for part, new in (("k", self.k), ("v", self.v)):
            self.cat[part] = self.torch.cat([self.cat[part][:, self.n :], new], 1)


class Kernels:
    """Case `kernels`: one query of 32 heads over 8 heads of 32768 rows in bf16, as torch's
    matmul attends: the heads of a group folded into the rows of one matrix, or keys and
    values expanded to all heads. A sample is one call."""

    Q_HEADS, HEADS, ROWS, ELEMS = 32, 8, 32768, 128

    def __init__(self, _name: str) -> None:
        torch = self.torch = torch_or_none()
        if torch is None:
            return
        self.q = torch.randn(self.Q_HEADS, 1, self.ELEMS).bfloat16()
        self.k, self.v = (torch.randn(self.HEADS, self.ROWS, self.ELEMS).bfloat16()
                          for _ in range(2))
        self.scale = self.ELEMS ** -0.5

    def variants(self) -> Dict[str, Variant]:
        if self.torch is None:
            return {}
        return {f"torch, heads {how}, {threads} thread{'s'[:threads - 1]}":
                self._timed(work, threads)
                for how, work in (("folded", self.folded), ("expanded", self.expanded))
                for threads in (1, 2)}

    def _timed(self, work: Callable[[], Any], threads: int) -> Variant:
        def run(n: int) -> List[int]:
            took = []
            self.torch.set_num_threads(threads)
            with self.torch.no_grad():
                for _ in range(n):
                    begun = now()
                    work()
                    took.append(now() - begun)
            return took
        return run

    def _attend(self, q: Any, k: Any, v: Any) -> Any:
        scores = self.torch.matmul(q, k.transpose(1, 2)) * self.scale
        return self.torch.matmul(self.torch.softmax(scores, -1), v)

    def folded(self) -> Any:
        return self._attend(self.q.view(self.HEADS, -1, self.ELEMS), self.k, self.v)

    def expanded(self) -> Any:
        def wide(rows: Any) -> Any:
            n = self.Q_HEADS // self.HEADS
            return rows[:, None].expand(-1, n, -1, -1).reshape(self.Q_HEADS, self.ROWS,
                                                               self.ELEMS)
        return self._attend(self.q, wide(self.k), wide(self.v))


CASES: Dict[str, Any] = {"kernels": Kernels, "python": Calls, "roll": Roll}


def main() -> None:
    case, name = sys.argv[1:]
    variants = CASES[case](name).variants()
    print("ready", *variants, "", sep="\n", flush=True)
    for line in sys.stdin:
        index, n = map(int, line.split())
        print(*list(variants.values())[index](n), flush=True)


if __name__ == "__main__":
    main()
