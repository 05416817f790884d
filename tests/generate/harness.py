# SPDX-License-Identifier: Apache-2.0
"""What the tests of the example programs share: a daemon of their own, mpirun, the model.

The environment names the programs: KVW_BIN (kvwheeld, kvwheel-...), KVW_SOURCE (the root of
the sources), KVW_MPIEXEC, KVW_EXAMPLE (generate or video); and KVW_SPEED, how fast the build
is: `full`, `slow` (no optimisation) or `tiny` (sanitizers). A test that cannot run ends with
77.
"""

import atexit
import contextlib
import importlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BIN = Path(os.environ["KVW_BIN"])
SOURCE = Path(os.environ["KVW_SOURCE"])
MPIEXEC = os.environ.get("KVW_MPIEXEC", "mpirun")
NAME = os.environ.get("KVW_EXAMPLE", "generate")
PROGRAM = f"kvwheel-{NAME}"
EXAMPLE = SOURCE / "examples" / NAME
MODEL = EXAMPLE / "model"
PROMPT = "In the beginning "
SKIPPED = 77
DEADLINE = 60  # seconds that anything may take to appear
AT_ONCE = 3  # runs of together(): the start of one is mostly waiting

SPEED = os.environ.get("KVW_SPEED", "full")

# Exit codes of the programs.
USAGE, REFUSED_MODEL, REFUSED_CACHE, REFUSED_RESUME, IO, RANKS = 2, 3, 4, 5, 6, 7


def by_speed(full, slow, tiny):
    """The size of a test that this build gets done in time."""
    return {"full": full, "slow": slow, "tiny": tiny}[SPEED]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def check(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    sys.exit(f"FAILED: waited {DEADLINE} s for {what}")


def together(calls):
    """Make calls that do not depend on each other, some at once. @return what they did."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def modules(*names):
    """Import modules of the example, in the interpreter that has torch (the system's, if any
    has): torch takes seconds to load, so once. Call it first."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        system = "/usr/bin/python3"
        if os.path.realpath(sys.executable) == os.path.realpath(system):
            skip(f"no Python with torch: {error}")
        return os.execv(system, [system, *sys.argv])


def programs():
    """@return reference.main and random_model.main of kvwheel-generate."""
    random_model, reference = modules("random_model", "reference")
    return reference.main, random_model.main


def output_of(main, *arguments):
    """What one of these programs prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
        code = main([str(argument) for argument in arguments])
    check(code == 0, f"exit code {code} of {arguments}")
    return text.getvalue()


def children(pid):
    found = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:  # the thread has ended
            pass
    return found


def descendants(pid):
    found = children(pid)
    return found + [deeper for child in found for deeper in descendants(child)]


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe").split("/")[-1].split(" ")[0]
    except OSError:
        return ""


def workers(job):
    """Ranks of a running job, in the order in which mpirun started them."""
    return sorted(pid for pid in descendants(job.pid) if program_of(pid) == PROGRAM)


class Node:
    """A folder and a daemon in it; both go when the test ends."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PROGRAM}-"))
        self.socket = self.folder / "kvwheeld.sock"
        self.log = open(self.folder / "kvwheeld.log", "w")
        self.daemon = subprocess.Popen(
            [BIN / "kvwheeld", "--socket", self.socket], stdout=self.log, stderr=self.log
        )
        atexit.register(self.stop)
        wait_until(self.answers, "kvwheeld")

    def answers(self):
        if self.daemon.poll() is not None:
            sys.exit(f"FAILED: kvwheeld: {(self.folder / 'kvwheeld.log').read_text()}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def servers(self):
        """The processes that serve: the keeper's children."""
        return [pid for pid in descendants(self.daemon.pid) if program_of(pid) == "kvwheeld"]

    def kvwheel(self, *arguments):
        """The command line tool, on this node."""
        return subprocess.run(
            [BIN / "kvwheel", *arguments], env={**os.environ, "KVWHEEL_SOCKET":
                                                str(self.socket)},
            capture_output=True, text=True, timeout=DEADLINE,
        )

    def stop(self):
        family = [self.daemon.pid, *descendants(self.daemon.pid)]
        self.daemon.terminate()
        try:
            self.daemon.wait(10)
        except subprocess.TimeoutExpired:
            for pid in family:
                if program_of(pid) == "kvwheeld":
                    os.kill(pid, signal.SIGKILL)
            self.daemon.wait(10)
        shutil.rmtree(self.folder, ignore_errors=True)


def environment(node):
    """MPI as root and on few cores of one host: shared memory is all that is looked for.
    Runs that start at once would fight for one session folder: each has its own. MPI leaks,
    from libraries that are gone when that is found."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,vader",
        "OMPI_MCA_ess_singleton_isolated": "1",
        "TMPDIR": tempfile.mkdtemp(prefix="run-", dir=node.folder),
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def command(ranks, node, *flags, model=MODEL):
    """One rank needs no launcher, which takes longer to start than the rank."""
    launcher = [MPIEXEC, "--oversubscribe", "-n", str(ranks)] if ranks > 1 else []
    return [
        *launcher, str(BIN / PROGRAM), "--socket", str(node.socket),
        "--model", str(model), *map(str, flags),
    ]


def start(ranks, node, *flags, model=MODEL):
    return subprocess.Popen(
        command(ranks, node, *flags, model=model), env=environment(node),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def run(ranks, node, *flags, model=MODEL, expect=0):
    """Run to the end and check the exit code. @return the completed process, in bytes."""
    done = subprocess.run(
        command(ranks, node, *flags, model=model), env=environment(node), capture_output=True,
        timeout=600,
    )
    if done.returncode != expect:
        sys.stderr.write(done.stderr.decode(errors="replace"))
        sys.exit(f"FAILED: exit code {done.returncode}, expected {expect}: {flags}")
    return done


def result(ranks, node, *flags, model=MODEL):
    """The last object of --json."""
    lines = run(ranks, node, "--json", *flags, model=model).stdout.splitlines()
    return json.loads(lines[-1])


def words(done):
    """What the program said on stderr: its own lines, without mpirun's banner."""
    lines = done.stderr.decode(errors="replace").splitlines()
    return [line for line in lines if line.startswith(f"{PROGRAM}: ")]


def refused(ranks, node, code, text, *flags, model=MODEL):
    """A run that ends with this code and one message, which has this text."""
    said = words(run(ranks, node, *flags, model=model, expect=code))
    check(len(said) == 1, f"one message, have {said}")
    check(text in said[0], f"'{text}' not in: {said[0]}")
