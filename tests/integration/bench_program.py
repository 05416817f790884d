#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwheel-bench works: its options, its exit codes, and what its JSON says."""
import json
import os
import subprocess
import sys
import tempfile

BIN = os.environ["KVW_BIN"]
ENVIRONMENT = {"cpu", "cores", "kernel", "governor", "huge_pages", "load", "compiler",
               "version", "date", "clock_ns", "seed"}
RESULT = {"case", "group", "name", "unit", "n", "calls", "p50", "p99", "min", "max",
          "floor", "ratio", "ratio_low", "ratio_high", "ratios"}
NAMES = {"attach, 1 GiB", "attach, 16 MiB", "kvw_update", "get, committed", "release",
         "begin", "commit", "commit, checksums", "wait for a step", "wait, sleeping", "wait, spinning"}


def bench(*arguments):
    done = subprocess.run([os.path.join(BIN, "kvwheel-bench"), *arguments], check=False,
                          capture_output=True, text=True, timeout=150)
    print(" ".join(arguments), "->", done.returncode)
    print(done.stderr, end="")
    return done


def expect_usage(*arguments):
    done = bench(*arguments)
    assert done.returncode == 2 and done.stderr and not done.stdout, done


def check_result(result, names):
    assert set(result) == RESULT, result
    assert 0 <= result["min"] <= result["p50"] <= result["p99"] <= result["max"], result
    assert result["n"] >= 5 and result["calls"] >= 1 and result["unit"] == "ns", result
    for ratio in result["ratios"]:
        assert ratio["floor"] in names, result
        assert 0 <= ratio["ratio_low"] <= ratio["ratio"] <= ratio["ratio_high"], result
    if result["ratios"]:
        assert result["ratio"] == result["ratios"][0]["ratio"], result
    else:
        assert result["ratio"] is None and result["floor"] is None, result


def check_local(folder):
    done = bench("local", "--json", "--rounds", "5", "--seed", "3")
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert set(report["environment"]) >= ENVIRONMENT, report["environment"]
    assert report["environment"]["seed"] == 3
    names = {result["name"] for result in report["results"]}
    assert NAMES <= names, names
    for result in report["results"]:
        check_result(result, names)
    left = subprocess.run([os.path.join(BIN, "kvwheel"), "ls", "--json"], check=True,
                          capture_output=True, text=True)
    assert "bench-" not in left.stdout, left.stdout
    done = bench("--rounds", "1", "--socket", os.path.join(folder, "nobody"), "local")
    assert done.returncode == 3 and not done.stdout, done


def check_generate():
    """Whole runs of kvwheel-generate, both ways."""
    done = bench("generate", "--json", "--rounds", "5")
    assert done.returncode == 0, done
    results = json.loads(done.stdout)["results"]
    names = {result["name"] for result in results}
    assert "ref" in names and len({result["group"] for result in results}) == 2, results
    for result in results:
        assert result.pop("rate_unit") == "tokens/s" and result.pop("rate") > 0, result
        check_result(result, names)


def check_options():
    done = bench("--list")
    assert done.returncode == 0 and done.stdout.startswith("local "), done
    done = bench("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage:"), done
    expect_usage("nothing-like-that")
    expect_usage("--rounds", "x", "local")
    expect_usage("--seconds", "-1", "local")
    expect_usage("--unknown", "local")
    expect_usage("--model")


def main():
    with tempfile.TemporaryDirectory(prefix="kvwheel-test-") as folder:
        os.environ["KVWHEELD"] = os.path.join(BIN, "kvwheeld")
        os.environ["KVWHEEL_SOCKET"] = os.path.join(folder, "s")
        try:
            if sys.argv[1:] == ["generate"]:
                check_generate()
                return
            check_options()
            check_local(folder)
            done = bench("--rounds", "1", "--model", os.path.join(folder, "none"), "generate")
            assert done.returncode == 1 and "no model at " + folder in done.stderr, done
        finally:
            subprocess.run([os.path.join(BIN, "kvwheel"), "stop"], check=False)


main()
