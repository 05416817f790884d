# SPDX-License-Identifier: Apache-2.0
"""kvwheel-bench python works, and a call from Python costs no more than it may."""

import json
import os
import subprocess
import sys

MOST_NS = 30000  # that Python adds to update + get + release


def test_a_row_from_python_costs_at_most_30_microseconds_more_than_from_c():
    run = subprocess.run(
        [f"{os.environ['KVW_BIN']}/kvwheel-bench", "python", "--json", "--rounds", "10"],
        capture_output=True, text=True, env={**os.environ, "KVWHEEL_PYTHON": sys.executable})
    assert run.returncode == 0, run.stderr

    # The least is what the code costs; the rest is what else this machine did.
    least = {of["name"]: of["min"] for of in json.loads(run.stdout)["results"]}
    c = least.pop("update + get + release, C")
    assert "update + get + release, Python" in least
    assert all(ns - c <= MOST_NS for ns in least.values()), (c, least)
