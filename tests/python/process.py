# SPDX-License-Identifier: Apache-2.0
"""A process of test_processes.py: `writer NAME` or `reader NAME`. Lines on stdin say what to
do, a line on stdout answers each."""

import sys

import kvwheel
import numpy as np

CHUNK, HEADS, ELEMS = 3, 2, 8


def spec(name):
    planes = kvwheel.kv_planes("f32", ELEMS)
    return kvwheel.Spec(name, [
        kvwheel.Group("self", 2, HEADS, window=12, chunk=CHUNK, sink=3, planes=planes)],
        lifetime="ttl", ttl_seconds=60)


def mapping_of(address):
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, permissions, *_ = line.split()
            first, end = (int(part, 16) for part in span.split("-"))
            if first <= address < end:
                return permissions if "memfd:" in line else None
    return None


class Writer:
    def __init__(self, name):
        self.cache = kvwheel.RollingKVCache(spec=spec(name), pin_policy="wait", timeout=20)

    def rows(self):
        return self.cache.lane(0).rows()

    def write(self, n_chunks):
        for _ in range(int(n_chunks)):
            self.stage()
            self.cache.commit()
        return self.rows()

    def stage(self):
        """A chunk of numbered rows, not committed."""
        first = self.rows()
        values = np.broadcast_to(np.arange(first, first + CHUNK, dtype=np.float32)[:, None, None],
                                 (CHUNK, HEADS, ELEMS))
        for layer in range(2):
            self.cache[layer].update(values, values)
        return first


class Reader:
    def __init__(self, name):
        self.cache = kvwheel.RollingKVCache.attach(name)
        self.arrays = []

    def wait(self, rows, seconds=20):
        try:
            self.cache.lane(0).wait_rows(int(rows), timeout=float(seconds))
        except kvwheel.Error as error:
            return type(error).__name__
        return "there"

    def look(self):
        """The window's rows, after every check of them; the arrays are let go."""
        for layer in range(2):
            with self.cache[layer].get() as view:
                for piece in view:
                    for plane in ("k", "v"):
                        array = piece[plane].numpy()
                        assert mapping_of(array.ctypes.data) == "r--s"
                        assert mapping_of(array.ctypes.data + array.nbytes - 1) == "r--s"
                        want = np.arange(piece.row, piece.row + piece.n_rows)
                        assert (array == want[:, None, None]).all()
                        del array
                rows = view.rows
        assert self.cache.stats.gathers == 0
        return ",".join(map(str, rows))

    def hold(self):
        """Keep arrays of what is there now."""
        self.arrays = [(row, self.cache[0].get()["k"][i].numpy())
                       for i, row in enumerate([0, 3])]
        return "held"

    def held(self):
        assert all((array[0] == row).all() for row, array in self.arrays)
        return "same"

    def drop(self):
        self.arrays = []
        return "dropped"


def main():
    one = {"writer": Writer, "reader": Reader}[sys.argv[1]](sys.argv[2])
    print("ready", flush=True)
    for line in sys.stdin:
        call, *arguments = line.split()
        print(getattr(one, call)(*arguments), flush=True)


main()
