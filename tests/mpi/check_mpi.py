#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libkvwheel-mpi and kvwheel-generate over emulated hosts (tests/mpi/hosts).

usage: check_mpi.py short|partitions|failures|network|generate

The environment names the programs: KVW_BIN, KVW_SOURCE, KVW_TESTS (mpi-player). A machine
without namespaces skips (77).
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(os.environ["KVW_BIN"])
SOURCE = Path(os.environ["KVW_SOURCE"])
TESTS = Path(os.environ["KVW_TESTS"])
HOSTS = SOURCE / "tests" / "mpi" / "hosts"
MODEL = SOURCE / "examples" / "generate" / "model"
LINE = re.compile(r"from (\d+) to (\d+) digest (\w+) wrong (\d+) worst (\S+) new (\d+) "
                  r"bytes (\d+) step-bytes (\d+) ranks (.*)")

# Where nodes are many, one binary of the player runs once a rank: keep what runs short.
START = f"{BIN}/kvwheel start --hosts $(echo $NH_HOSTS | tr ' ' ,) >/dev/null || exit 99\n"


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def hosts(n, slots, script, *options, limit=120):
    """Run a script on the head of n hosts whose daemons run. Returns status, stdout, stderr."""
    prologue = f"export PATH={TESTS}:{BIN}:$PATH MODEL={MODEL}\ncd {SOURCE}\n"
    done = subprocess.run([HOSTS, "-n", str(n), "-s", str(slots), "-t", str(limit), *options,
                           "--", "bash", "-c", prologue + START + script],
                          capture_output=True, text=True, check=False)
    if done.returncode == 77:
        print(f"skipped: {done.stderr.strip()}")
        sys.exit(77)
    return done.returncode, done.stdout, done.stderr


def results(n, slots, commands, *options, limit=120):
    """Run players; each prints its line. Returns a list of dicts."""
    status, out, err = hosts(n, slots, "set -e\n" + "\n".join(commands), *options, limit=limit)
    lines = [LINE.fullmatch(line) for line in out.splitlines() if line.startswith("from ")]
    check(status == 0 and all(lines) and len(lines) == len(commands),
          f"{commands}: {status}\n{out}{err}")
    names = "first end digest wrong worst new bytes step_bytes ranks".split()
    return [dict(zip(names, line.groups())) for line in lines]


def player(ranks, *args, mpirun=""):
    return f"mpirun {mpirun} -np {ranks} mpi-player " + " ".join(map(str, args))


def one_rank(*args):
    """The digest of one rank on one host."""
    return results(1, 1, [player(1, *args)])[0]["digest"]


# ---------------------------------------------------------------------- partitions ----------

def check_same_bits(wanted, n, slots, cases, *common):
    """Heads, layers, lanes split, and rows within a box: every bit as one rank's."""
    found = results(n, slots, [player(ranks, *args, *common) for ranks, args in cases])
    for (ranks, args), result in zip(cases, found):
        check(result["wrong"] == "0" and result["digest"] == wanted,
              f"{ranks} ranks on {n} hosts, {args}: {result}, wanted {wanted}")
    print(f"{n} hosts: {len(cases)} partitions give the bits of one rank")


def check_row_bits(n, slots, cases, *common):
    """Rows split over boxes: within 1e-5 (the player looks), and the same bits for every way
    of merging, every run and every chunking."""
    found = results(n, slots, [player(ranks, *args, *common) for ranks, args in cases])
    for (ranks, args), result in zip(cases, found):
        check(result["wrong"] == "0" and result["digest"] == found[0]["digest"],
              f"{ranks} ranks on {n} hosts, {args}: {result}, wanted {found[0]}")
    worst = max(float(result["worst"]) for result in found)
    print(f"{n} hosts: {len(cases)} runs over split rows: same bits, within {worst:.0e}")


def parts(lanes, layers, heads, rows):
    return ("-p", f"{lanes},{layers},{heads},{rows}")


def short():
    rows = ("-r", 48)
    wanted = one_rank(*rows)
    check_same_bits(wanted, 2, 2, [
        (2, parts(1, 1, 2, 1)),
        (4, (*parts(1, 1, 2, 2), "-B", 2, "-f", 3)),  # heads across, rows within
    ], *rows)
    check_row_bits(2, 2, [
        (4, parts(1, 1, 2, 2)),
        (4, (*parts(1, 1, 2, 2), "-f", 3, "-y")),
    ], *rows)


def partitions():
    wanted = one_rank()
    check_same_bits(wanted, 3, 2, [
        (3, parts(1, 1, 3, 1)),        # 4 heads over 3: uneven
        (3, parts(1, 3, 1, 1)),
        (6, parts(1, 3, 2, 1)),
        (6, (*parts(1, 3, 2, 1), "-B", 2)),
        (6, (*parts(1, 1, 3, 2), "-B", 2)),
        (6, (*parts(1, 1, 3, 2), "-B", 2, "-f", 1, "-y")),
        (6, (*parts(1, 1, 3, 2), "-B", 2, "-f", 2)),
    ])
    check_same_bits(one_rank("-c"), 4, 2, [
        (8, (*parts(1, 1, 4, 2), "-B", 2, "-c")),
        (4, (*parts(1, 1, 4, 1), "-c")),
    ])
    check_same_bits(one_rank("-l", 3), 2, 2, [
        (2, (*parts(2, 1, 1, 1), "-l", 3)),
        (4, (*parts(2, 1, 2, 1), "-l", 3, "-B", 2)),
    ])
    # Every way of merging, and every chunking, in as many parts as hosts and more.
    for n, ranks in (2, 2), (3, 3), (4, 8):
        check_row_bits(n, 2, [(ranks, (*parts(1, 1, 1, ranks), "-f", flags, *more))
                              for flags in (0, 1, 2, 3) for more in ((), ("-y",))])
    check_row_bits(3, 2, [(6, (*parts(1, 1, 2, 3), "-f", flags, "-c", "-b", 8))
                          for flags in (0, 3)])
    # Blocks so large that shards are empty for long; a window of little more than the sink.
    check_row_bits(3, 1, [(3, (*parts(1, 1, 1, 3), "-b", 64, "-f", f)) for f in (0, 3)])
    check_row_bits(2, 1, [(2, (*parts(1, 1, 1, 2), "-b", 1, "-W", 5, "-S", 4, "-f", f))
                          for f in (0, 3)])
    # More ranks than KV heads: each is repeated.
    repeated = results(2, 2, [player(4, *parts(1, 1, 4, 1), "-H", 2)])[0]
    check(repeated["wrong"] == "0", f"repeated heads: {repeated}")
    print("4 ranks, 2 KV heads: repeated")


# ------------------------------------------------------------------------ failures ----------

def check_no_daemon():
    """Without a daemon: which host, and the command that helps."""
    status, _, err = hosts(2, 1, "nh-exec h1 kvwheel stop >/dev/null\n"
                           "mpirun -np 2 mpi-player -p 1,1,2,1; exit $?")
    check(status == 2 and "rank 1 on h1" in err and
          "kvwheel start --hosts h0,h1" in err and "srun" in err, f"no daemon: {status} {err}")
    status, out, err = hosts(2, 1, "nh-exec h1 kvwheel stop >/dev/null\n"
                             "kvwheel run --hosts h0,h1 -- mpirun -np 2 true; exit $?")
    check(status == 103 and "h1: kvwheel: no daemon" in err, f"preflight: {status} {err}")
    print("a host without a daemon is named, and what starts it")


def check_disagreement():
    """Ranks with different specs: which rank, on which host."""
    status, _, err = hosts(2, 1, "mpirun -np 1 mpi-player -p 1,1,2,1 : "
                           "-np 1 mpi-player -p 1,1,2,1 -W 41; exit $?")
    check(status == 2 and re.search(r"rank 1 on h1: its spec or options .* differ", err),
          f"disagreement: {status} {err}")
    print("ranks that disagree on the spec are named")


def check_late_rank():
    """A stopped rank: the others end by their own time-out and name it, its host, step, row."""
    script = """
    mpirun -np 2 mpi-player -p 1,1,1,2 -k -n late -y -w 100 -t 2000 & job=$!
    nh-wait 20 sh -c 'nh-exec h1 kvwheel show late.1of2 | grep -qE " self +[1-9][0-9] "' || exit 98
    nh-exec h1 'for p in /proc/[0-9]*; do grep -qx mpi-player $p/comm 2>/dev/null &&
                kill -STOP ${p#/proc/}; done'
    wait $job; exit $?
    """
    start = time.monotonic()
    status, _, err = hosts(2, 1, script)
    check(status == 104 and re.search(r"step \d+.*row \d+.*no answer for 2\.0 s from rank 1 on h1",
                                      err.replace("\n", " ")), f"late rank: {status} {err}")
    print(f"a stopped rank is named, with step and row ({time.monotonic() - start:.1f} s in all)")


def check_lost_host():
    """A power cut of one of three hosts: exit 101 with its name, as many ranks on two, the lost
    boxes filled, the kept ones compared, and the results as if nothing had happened."""
    wanted = results(3, 2, [player(6, *parts(1, 1, 3, 2))])[0]["digest"]
    script = """
    ( nh-wait 30 sh -c 'nh-exec h1 kvwheel show gen.2of6 | grep -qE " self +[1-9][0-9] "' &&
      nh-kill h1 ) &
    kvwheel run --hosts h0:2,h1:2,h2:2 --relaunch 1 -- \\
        mpirun -np 6 mpi-player -p 1,1,3,2 -k -n gen -y -w 100
    echo run $?
    """
    status, out, err = hosts(3, 2, script)
    lines = [LINE.fullmatch(line) for line in out.splitlines() if line.startswith("from ")]
    check(status == 0 and "run 0" in out and "lost host: h1 (exit 101)" in err and lines,
          f"lost host: {status}\n{out}{err}")
    check(lines[-1][4] == "0" and lines[-1][6] == "2", f"lost host: {lines[-1][0]}")
    print(f"a power cut: named, 2 of 6 boxes filled, going on at row {lines[-1][1]}; "
          f"(uninterrupted: {wanted})")


def check_pulled_cable():
    script = """
    ( nh-wait 30 sh -c 'nh-exec h1 kvwheel show gen.1of2 | grep -qE " self +[1-9][0-9] "' &&
      date +%s.%N >$NH_DIR/cut && nh-link h1 down ) &
    kvwheel run --hosts h0:1,h1:1 -- mpirun -np 2 mpi-player -p 1,1,2,1 -k -n gen -y -w 200
    status=$?
    echo took $(date +%s.%N) $(cat $NH_DIR/cut)
    exit $status
    """
    status, out, err = hosts(2, 1, script)
    took = re.search(r"took ([\d.]+) ([\d.]+)", out)
    check(status == 101 and "lost host: h1" in err and took, f"cable: {status}\n{out}{err}")
    print(f"a pulled cable: named, {float(took[1]) - float(took[2]):.1f} s after it")


def check_killed_rank():
    script = """
    ( nh-wait 20 sh -c 'nh-exec h1 kvwheel show gen.1of2 | grep -qE " self +[1-9][0-9] "' &&
      nh-exec h1 'for p in /proc/[0-9]*; do grep -qx mpi-player $p/comm 2>/dev/null &&
                  kill -KILL ${p#/proc/}; done' ) &
    kvwheel run --hosts h0:1,h1:1 -- mpirun -np 2 mpi-player -p 1,1,2,1 -k -n gen -y -w 100
    echo run $?
    kvwheel run --hosts h0:1,h1:1 --timeout 1 -- mpirun -np 2 sleep 30; echo run $?
    kvwheel run --hosts h0:1,h1:1 -- no-such-mpirun -np 2 true; echo run $?
    kvwheel run --hosts h0:1,h1:1 -- mpirun -np 2 sh -c 'exit 7'; echo run $?
    mpirun -np 2 mpi-player -p 1,1,2,1 -k -n gen
    """
    status, out, err = hosts(2, 1, script)
    codes = re.findall(r"^run (\d+)$", out, re.M)
    check(status == 0 and codes == ["102", "104", "103", "7"], f"exit codes: {codes}\n{out}{err}")
    line = LINE.search(out)
    check(line and line[4] == "0" and line[6] == "0" and line[1] != "0", f"going on: {out}")
    print("killed rank 102, time-out 104, no mpirun 103, the program's own 7; the next job "
          f"goes on at row {line[1]}")


def failures():
    check_no_daemon()
    check_disagreement()
    check_killed_rank()
    check_late_rank()
    check_lost_host()
    check_pulled_cable()


def network():
    wanted = one_rank("-r", 60)
    slow = results(3, 1, [player(3, *parts(1, 1, 3, 1), "-r", 60),
                          player(3, *parts(1, 1, 1, 3), "-r", 60)], "-r", "20mbit")
    check(slow[0]["digest"] == wanted and slow[1]["wrong"] == "0", f"slow network: {slow}")
    print("20 Mbit/s: same bits")
    if subprocess.run(["sh", "-c", "command -v nft"], capture_output=True,
                      check=False).returncode != 0:
        print("no nft: a lossy network was not tried")
        return
    lossy = results(2, 1, [player(2, *parts(1, 1, 2, 1), "-r", 60),
                           player(2, *parts(1, 1, 1, 2), "-r", 60)], "-l", "1")
    check(lossy[0]["digest"] == wanted and lossy[1]["wrong"] == "0", f"lossy network: {lossy}")
    print("1 % of packets lost: same bits")


# ------------------------------------------------------------------------ generate ----------

def generated(out):
    """The result object: the last line of JSON."""
    return json.loads([line for line in out.splitlines() if line.startswith("{")][-1])


def generate_flags(n):
    return (f"--model $MODEL --prompt 'In the beginning ' --tokens {n} --window 48 --sink 4 "
            "--json --seed 3")


def check_generate_over_hosts():
    """Heads over hosts: the text of one rank. Rows over hosts: the same in every run."""
    n = 40
    status, out, err = hosts(2, 2, f"""
    kvwheel-generate {generate_flags(n)} --socket $NH_DIR/own.sock >$NH_DIR/1 2>/dev/null ||
        {{ kvwheel --socket $NH_DIR/own.sock start >/dev/null
          kvwheel-generate {generate_flags(n)} --socket $NH_DIR/own.sock >$NH_DIR/1 || exit 90; }}
    kvwheel --socket $NH_DIR/own.sock stop >/dev/null
    mpirun -np 4 kvwheel-generate {generate_flags(n)} >$NH_DIR/2 || exit 91
    mpirun -np 4 kvwheel-generate {generate_flags(n)} --row-parts 2 --row-block 8 >$NH_DIR/3 || exit 92
    mpirun -np 4 kvwheel-generate {generate_flags(n)} --row-parts 2 --row-block 8 --chunk 5 \\
        >$NH_DIR/4 || exit 93
    for i in 1 2 3 4; do tail -n 1 $NH_DIR/$i; done
    """)
    check(status == 0, f"generate: {status} {err}")
    one, heads, rows, again = [json.loads(line) for line in out.splitlines()]
    check(one["tokens"] == heads["tokens"] and heads["nodes"] == 2, f"heads over hosts: {heads}")
    check(rows["tokens"] == again["tokens"] and rows["row_parts"] == 2,
          f"rows over hosts: {rows} {again}")
    check(heads["bytes_written"] == heads["bytes_new_rows"] and
          rows["bytes_written"] == rows["bytes_new_rows"], f"bytes: {heads} {rows}")
    print(f"{n} tokens on 2 hosts: heads split gives one rank's text; rows split, any chunking, "
          "one text")


def check_generate_loses_host(rows):
    """A power cut of one of three hosts while generating."""
    n = 120
    flags = generate_flags(n) + (" --row-parts 3 --row-block 8" if rows else "")
    np = 6 if rows else 3
    slots = np // 3
    status, out, err = hosts(3, slots, f"""
    mpirun -np {np} kvwheel-generate {flags} >$NH_DIR/whole 2>/dev/null || exit 90
    ( nh-wait 60 sh -c 'nh-exec h1 kvwheel show text.{slots}of{np} | grep -qE " self +[2-9][0-9] "' &&
      date +%s.%N >$NH_DIR/cut && nh-kill h1 ) &
    kvwheel run --hosts h0:{slots},h1:{slots},h2:{slots} --relaunch 1 -- \\
        mpirun -np {np} kvwheel-generate {flags} --resume text >$NH_DIR/cut-text 2>$NH_DIR/err
    status=$?
    cat $NH_DIR/err >&2
    tail -n 1 $NH_DIR/whole; tail -n 1 $NH_DIR/cut-text
    exit $status
    """)
    check(status == 0 and "lost host: h1 (exit 101)" in err, f"lost host: {status}\n{err}")
    whole, cut = [json.loads(line) for line in out.splitlines()]
    check(cut["tokens"] == whole["tokens"], f"text: {cut} {whole}")
    check(cut["rebuilt"] == slots and cut["nodes"] == 2 and cut["resumed_from"] > 0 and
          " 0 differ" in err, f"rebuilt: {cut}\n{err}")
    print(f"{'rows' if rows else 'heads'} over 3 hosts, one cut at row {cut['resumed_from']}: "
          f"rebuilt {cut['rebuilt']}, the text is that of an uninterrupted run")


def generate():
    check_generate_over_hosts()
    check_generate_loses_host(False)
    check_generate_loses_host(True)


with tempfile.TemporaryDirectory() as folder:
    os.environ["TMPDIR"] = folder  # of mpirun on the head
    {"short": short, "partitions": partitions, "failures": failures, "network": network,
     "generate": generate}[sys.argv[1]]()
