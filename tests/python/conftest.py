# SPDX-License-Identifier: Apache-2.0
"""A daemon of the tests' own, caches with names of their own, and a seed that is printed.

The environment names the build: KVW_BIN (programs), KVW_SOURCE (root of the sources),
KVWHEEL_LIBRARY_DIR (libraries)."""

import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

BIN = Path(os.environ["KVW_BIN"])
_folder = tempfile.mkdtemp(prefix="kvw-python-")
os.environ["KVWHEEL_SOCKET"] = f"{_folder}/kvwheeld.sock"
os.environ["KVWHEELD"] = str(BIN / "kvwheeld")

import kvwheel  # noqa: E402  (after the environment)

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    pass

_numbers = itertools.count()
SEED = int(os.environ.get("KVW_SEED", "20261201"))


def pytest_report_header():
    return f"kvwheel {kvwheel.__version__}, KVW_SEED={SEED}"


def pytest_unconfigure():
    subprocess.run([BIN / "kvwheel", "stop", "--force"], capture_output=True, check=False)
    shutil.rmtree(_folder, ignore_errors=True)


@pytest.fixture(scope="session")
def client():
    with kvwheel.connect() as client:
        yield client


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture
def name():
    """A name that no other test has."""
    return f"test-{next(_numbers)}"


@pytest.fixture
def make(client, name):
    """make(**of a group, lanes=...): a cache of one group `self` with planes k and v, 2
    layers, 2 heads of 8, window 12, chunk 3, sink 3, f32; closed at the end."""
    made = []

    def cache(lanes=1, type="f32", client=client, layers=2, heads=2, head_dim=8, rank=0,
              parts=1, options=None, **group):
        group = {"window": 12, "chunk": 3, "sink": 3, **group}
        spec = kvwheel.Spec(f"{name}-{len(made)}", [kvwheel.Group(
            "self", layers, heads, planes=kvwheel.kv_planes(type, head_dim), **group)],
            lanes=lanes, head_parts=parts)
        made.append(kvwheel.RollingKVCache(spec=spec, client=client, rank=rank,
                                           **(options or {})))
        return made[-1]

    yield cache
    for one in made:
        one.close()
