#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwheel-bench over the ranks of an MPI job: what it prints, its verdicts, and compare.

usage: bench_nodes.py [HOSTS]   two ranks here; with HOSTS (tests/mpi/hosts) on two emulated
                                hosts with two each
"""
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile

BIN = os.environ["KVW_BIN"]
BENCH = os.path.join(BIN, "kvwheel-bench")
KEYS = {"case", "bytes", "p50_us", "p99_us", "max_us", "gbps", "wrong"}
NAMES = {"attach.kvwheel", "attach.posix_shm", "append.kvwheel", "append.in_process",
         "append.posix_shm", "rolling.kvwheel", "rolling.in_process", "rolling.posix_shm",
         "read.in_place", "read.copied", "read.posix_shm", "decode.in_place",
         "decode.copied", "chunk.in_place", "chunk.copied", "merge.gathered",
         "merge.by_heads", "mixed.step", "notify.spin", "notify.sleep",
         "readers.writer_alone", "readers.writer_beside", "readers.reader",
         "share.in_place", "share.copied_in", "share.mpi_alltoall", "share_read.in_place",
         "share_read.copied_in", "share_read.mpi_alltoall"}
SMALL = ["--rounds", "1", "--window", "128"]


def job(hosts, *arguments):
    """Run the bench as a job of two ranks, or of four on two hosts."""
    command = ["mpirun", "-np", "2", BENCH, *arguments]
    if hosts:
        command = [hosts, "-n", "2", "-s", "2", "-t", "100", "--",
                   "mpirun", "-x", "KVWHEELD", "-np", "4", BENCH, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True,
                          timeout=120)
    print(" ".join(arguments), "->", done.returncode)
    print(done.stderr, end="")
    return done


def alone(*arguments):
    return subprocess.run([BENCH, *arguments], check=False, capture_output=True, text=True,
                          timeout=60)


def moved_bytes(report, case):
    return {entry["moved_bytes"] for entry in report["details"] if entry["case"] == case}


def check_json(hosts, path):
    done = job(hosts, "--json", *SMALL)
    assert done.returncode == 0, done
    report = json.loads(done.stdout[done.stdout.index("{"):])
    names = {result["case"] for result in report["results"]}
    assert NAMES <= names, NAMES - names
    for server, program in (("redis", "redis-server"), ("memcached", "memcached")):
        assert (f"append.{server}" in names) == bool(shutil.which(program)), names
    for result in report["results"]:
        assert set(result) == KEYS, result
        assert result["wrong"] == 0, result
        assert 0 <= result["p50_us"] <= result["p99_us"] <= result["max_us"], result
    # Whatever the window, as many bytes cross ranks.
    assert len(moved_bytes(report, "decode.in_place")) == 1, report["details"]
    assert min(moved_bytes(report, "decode.in_place")) > 0, report["details"]
    environment = report["environment"]
    assert environment["ranks"] == (4 if hosts else 2), environment
    assert environment["nodes"] == (2 if hosts else 1), environment
    assert environment["mpi"] and "mpi_yield_when_idle" in environment["mca"], environment
    pairs = {(entry["from"], entry["to"]) for entry in report["hosts"]}
    assert pairs == ({("h0", "h1"), ("h1", "h0")} if hosts else set()), pairs
    assert report["verdict"] == "VALID"
    with open(path, "w", encoding="ascii") as file:
        json.dump(report, file)
    return report


def check_compare(report, folder, path):
    done = alone("compare", path, path)
    assert done.returncode == 0 and "slower" not in done.stdout, done
    other = os.path.join(folder, "other.json")
    for change, word in (("p50_us", "slower"), ("wrong", "WRONG"), (None, "missing")):
        changed = json.loads(json.dumps(report))
        if change is None:
            changed["results"].pop()
        else:
            changed["results"][-1][change] = changed["results"][-1][change] * 1000 + 1000
        with open(other, "w", encoding="ascii") as file:
            json.dump(changed, file)
        done = alone("compare", path, other)
        assert done.returncode == 4 and word in done.stdout, (word, done)
    assert alone("compare", path).returncode == 2
    assert alone("compare", path, os.path.join(folder, "none")).returncode == 1


def check_columns(hosts, folder):
    """OSU's two columns, CSV, plots, and limits that are and are not met."""
    plots = os.path.join(folder, "plots")
    done = job(hosts, *SMALL, "--plot", plots, "--cold", "--limit", "read.* wrong<=0",
               "--limit", "*.in_place gbps>=0", "read")
    assert done.returncode == 0 and "# VALID" in done.stdout, done
    rows = [line.split() for line in done.stdout.splitlines()
            if line and not line.startswith("#")]
    assert rows and all(len(row) == 2 and int(row[0]) and float(row[1]) >= 0
                        for row in rows), rows
    if shutil.which("gnuplot"):
        with open(os.path.join(plots, "read.svg"), encoding="utf-8") as file:
            assert "<svg" in file.read()
    done = job(hosts, *SMALL, "--csv", "--limit", "merge.gathered p50_us<=0", "merge")
    assert done.returncode != 0 and "merge.gathered" in done.stderr, done
    lines = done.stdout[done.stdout.index("case,"):].split("\n-----")[0].strip()
    for row in csv.DictReader(io.StringIO(lines)):
        assert set(row) == KEYS and row["wrong"] == "0", row
    for wrong in ("read", "read p50_us<1", "read size<=1", "read p50_us<=1x"):
        assert alone("--limit", wrong, "read").returncode == 2, wrong
    assert alone("local", "read").returncode == 2


def main():
    hosts = sys.argv[1] if len(sys.argv) > 1 else None
    os.environ["KVWHEELD"] = os.path.join(BIN, "kvwheeld")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                      OMPI_MCA_mpi_yield_when_idle="1",
                      OMPI_MCA_hwloc_base_binding_policy="none")
    with tempfile.TemporaryDirectory(prefix="kvwheel-test-") as folder:
        os.environ["KVWHEEL_SOCKET"] = os.path.join(folder, "s")
        os.environ["OMPI_MCA_orte_tmpdir_base"] = folder
        path = os.path.join(folder, "report.json")
        try:
            report = check_json(hosts, path)
            check_compare(report, folder, path)
            check_columns(hosts, folder)
        finally:
            if not hosts:
                subprocess.run([os.path.join(BIN, "kvwheel"), "stop"], check=False)


main()
