#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvwheel plan on other machines: which node each part goes to, machine by machine.

A line of an expected plan is RANK GROUP FIRST_LAYER-LAST_LAYER NODE; layers that follow each
other on one node are one line. Machines are hwloc's synthetic strings, or XML files in
machines/ (strings cannot say that nodes differ, or that a cpuset leaves some out).
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
KVWHEEL = os.path.join(os.environ["KVW_BIN"], "kvwheel")
SMALL = ["--layers", "8", "--heads", "8", "--head-dim", "64", "--window", "4096"]  # 16 MiB a layer
LARGE = ["--layers", "8", "--heads", "8", "--head-dim", "128", "--window", "32768"]  # 1 GiB in all

# name, machine, options, expected lines or a refusal's words
CASES = [
    ("one node", "numa:1 core:4 pu:1", SMALL + ["--ranks", "2", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 0"]),
    ("recorded: a virtual machine of one node", "one-node-vm.xml", SMALL,
     ["0 self 0-7 0"]),
    ("two sockets, spread", "pack:2 [numa(memory=64GB)] core:4 pu:2", SMALL,
     ["0 self 0-3 0", "0 self 4-7 1"]),
    ("two sockets, four ranks follow", "pack:2 [numa(memory=64GB)] core:4 pu:2",
     SMALL + ["--ranks", "4", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 0", "2 self 0-7 1", "3 self 0-7 1"]),
    ("two sockets, layers over ranks", "pack:2 [numa(memory=64GB)] core:4 pu:2",
     SMALL + ["--ranks", "2", "--layer-parts", "2", "--placement", "follow"],
     ["0 self 0-3 0", "1 self 4-7 1"]),
    ("two sockets, rows over ranks: one place", "pack:2 [numa(memory=64GB)] core:4 pu:2",
     SMALL + ["--ranks", "4", "--row-parts", "2", "--row-block", "128", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 0", "2 self 0-7 1", "3 self 0-7 1"]),
    ("odd CPU numbering changes nothing",
     "pack:2 [numa(memory=64GB)] core:4 pu:2(indexes=0,2,4,6,8,10,12,14,1,3,5,7,9,11,13,15)",
     SMALL + ["--ranks", "2", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 1"]),
    ("nodes 0 and 8, as on POWER", "pack:2 [numa(memory=64GB indexes=0,8)] core:2 pu:1",
     SMALL + ["--ranks", "2", "--placement", "map:8,0"],
     ["0 self 0-7 8", "1 self 0-7 0"]),
    ("four sockets, two ranks sit apart", "pack:4 [numa(memory=64GB)] core:2 pu:1",
     SMALL + ["--ranks", "2", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 2"]),
    ("eight nodes, spread", "pack:8 [numa(memory=16GB)] core:2 pu:1", SMALL,
     [f"0 self {i}-{i} {i}" for i in range(8)]),
    ("eight nodes, eight ranks", "pack:8 [numa(memory=16GB)] core:2 pu:1",
     SMALL + ["--ranks", "8", "--placement", "follow"],
     [f"{i} self 0-7 {i}" for i in range(8)]),
    ("sub-NUMA clusters: two packages of two", "pack:2 group:2 [numa(memory=32GB)] core:4 pu:1",
     SMALL + ["--ranks", "2", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 2"]),
    ("sub-NUMA clusters: eight ranks", "pack:2 group:4 [numa(memory=16GB)] core:2 pu:1",
     SMALL + ["--ranks", "8", "--placement", "follow"],
     [f"{i} self 0-7 {i}" for i in range(8)]),
    ("dies beside package memory", "pack:2 [numa(memory=32GB)] die:2 [numa(memory=16GB)] core:2 pu:1",
     SMALL + ["--ranks", "4", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 1", "2 self 0-7 3", "3 self 0-7 4"]),
    ("memory-only nodes are left alone", "cxl.xml", SMALL + ["--ranks", "2"],
     ["0 self 0-3 0", "0 self 4-7 2", "1 self 0-3 0", "1 self 4-7 2"]),
    ("memory-only nodes take no turns", "cxl.xml", SMALL + ["--placement", "interleave"],
     ["0 self 0-7 turns 0 2"]),
    ("a memory-only node that is named", "cxl.xml", SMALL + ["--placement", "node:1"],
     ["0 self 0-7 1"]),
    ("asymmetric: what the small node lacks goes to the large one", "asymmetric.xml",
     LARGE, ["0 self 0-3 0", "0 self 4-5 1", "0 self 6-7 0"]),
    ("asymmetric: a node that is named and too small", "asymmetric.xml",
     LARGE + ["--placement", "node:1"], "NUMA node 1: need 1073774592 bytes, have 300000000"),
    ("asymmetric: it takes no turns", "asymmetric.xml", LARGE + ["--placement", "interleave"],
     ["0 self 0-7 turns 0"]),
    ("a square with distances: the nearest, of two that with more room", "square.xml",
     LARGE + ["--ranks", "4", "--placement", "follow"],
     ["0 self 0-7 0", "1 self 0-7 2", "2 self 0-7 2", "3 self 0-7 3"]),
    ("a cpuset without node 3", "cpuset.xml", SMALL + ["--ranks", "3", "--placement", "follow",
     "--heads", "9"], ["0 self 0-7 0", "1 self 0-7 1", "2 self 0-7 2"]),
    ("a node that a cpuset leaves out", "cpuset.xml", SMALL + ["--placement", "node:3"],
     "there is no NUMA node 3"),
]


def run(machine, options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HWLOC_")}
    key, value = "HWLOC_SYNTHETIC", machine
    if machine.endswith(".xml"):
        key, value = "HWLOC_XMLFILE", os.path.join(HERE, "machines", machine)
    environment[key] = value
    done = subprocess.run([KVWHEEL, "plan", "--json", *options], env=environment, check=False,
                          capture_output=True, text=True, timeout=30)
    return json.loads(done.stdout)


def lines_of(plan):
    lines = []
    turns = sorted(node["node"] for node in plan["nodes"] if node["bytes"] > 0)
    for part in plan["parts"]:
        node = part["node"] if part["node"] is not None else "turns " + " ".join(map(str, turns))
        first, last = part["layer_first"], part["layer_first"] + part["layers"] - 1
        if lines and lines[-1][:2] == [part["rank"], part["group"]] and lines[-1][4] == node:
            lines[-1][3] = last  # another reason, the same node
        else:
            lines.append([part["rank"], part["group"], first, last, node])
    return [f"{rank} {group} {first}-{last} {node}" for rank, group, first, last, node in lines]


def main():
    failed = 0
    for name, machine, options, expected in CASES:
        plan = run(machine, options)
        got = plan["text"] if "text" in plan else lines_of(plan)
        good = expected in got if isinstance(expected, str) else got == expected
        again = run(machine, options)
        if not good or again != plan:
            failed += 1
            print(f"FAILED {name}: {machine} {' '.join(options)}\n  expected {expected}\n"
                  f"  got      {got}")
    print(f"{len(CASES)} plans on {len({case[1] for case in CASES})} machines, {failed} wrong")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
