# SPDX-License-Identifier: Apache-2.0
"""Two Python processes on one cache: nothing is copied, waits work, either may be killed."""

import _thread
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import kvwheel
import pytest

SCRIPT = Path(__file__).parent / "process.py"
DEADLINE = 60  # seconds for any answer


class Process:
    """A process of process.py."""

    def __init__(self, role, name):
        self.role = role
        self.of = subprocess.Popen([sys.executable, SCRIPT, role, name], text=True, bufsize=1,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.answer() == "ready"

    def say(self, line):
        self.of.stdin.write(line + "\n")
        self.of.stdin.flush()

    def answer(self):
        ready, _, _ = select.select([self.of.stdout], [], [], DEADLINE)
        assert ready, f"{self.role}: no answer in {DEADLINE} s"
        return self.of.stdout.readline().strip()

    def __call__(self, line):
        self.say(line)
        return self.answer()

    def kill(self):
        self.of.kill()
        self.of.wait()

    def end(self):
        if self.of.poll() is None:
            self.of.kill()
        self.of.wait()
        self.of.stdin.close()
        self.of.stdout.close()


@pytest.fixture
def start(name, client):
    processes = []

    def one(role):
        processes.append(Process(role, name))
        return processes[-1]

    yield one
    for process in processes:
        process.end()
    client.remove(name, force=True)


def window(rows):
    return ",".join(map(str, [*range(min(rows, 3)), *range(max(3, rows - 9), rows)]))


def test_a_reader_sees_the_writers_rows_without_a_copy(start):
    writer, reader = start("writer"), start("reader")

    for chunks in range(1, 17):
        reader.say(f"wait {3 * chunks}")
        assert writer("write 1") == str(3 * chunks)
        assert reader.answer() == "there"
        assert reader("look") == window(3 * chunks)
    assert reader("wait 49 0.05") == "TimedOut"


def test_a_reader_that_is_killed_holds_nobody_up(start):
    writer, reader = start("writer"), start("reader")
    writer("write 2")
    assert reader("hold") == "held"
    writer.say("write 8")  # waits for the reader's pin

    assert reader("held") == "same"
    reader.kill()
    assert writer.answer() == "30"
    assert start("reader")("look") == window(30)


def test_a_reader_holds_the_writer_until_it_lets_go(start):
    writer, reader = start("writer"), start("reader")
    writer("write 2")
    reader("hold")
    writer.say("write 8")

    assert reader("held") == "same" and reader("drop") == "dropped"
    assert writer.answer() == "30"


def test_a_writer_that_is_killed_leaves_its_last_commit(start):
    writer, reader = start("writer"), start("reader")
    writer("write 5")
    writer("stage")
    assert reader("look") == window(15)
    reader.say("wait 18")
    writer.kill()

    assert reader.answer() == "OwnerDied"
    assert reader("look") == window(15)
    again = start("writer")
    assert again("rows") == "15" and again("write 3") == "24"
    assert reader("wait 24") == "there" and reader("look") == window(24)


def attach_rank_0(name, client, seconds):
    return kvwheel.RollingKVCache.attach(name, rank=0, client=client, owner_timeout=seconds)


def test_a_rank_that_is_held_is_busy_when_the_time_is_over(start, name, client):
    writer = start("writer")
    for seconds in (0, 0.01, 0.5):  # at once, within a slice of the wait, over several
        begin = time.monotonic()
        with pytest.raises(kvwheel.Busy, match=str(writer.of.pid)):
            attach_rank_0(name, client, seconds)
        assert time.monotonic() - begin >= seconds
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            attach_rank_0(name, client, seconds)


@pytest.mark.parametrize("seconds", [None, 20])
def test_a_rank_is_waited_for_until_its_process_ends(start, name, client, seconds):
    writer = start("writer")
    writer("write 2")
    killer = threading.Timer(0.5, writer.of.kill)  # likely while it is waited for
    killer.start()
    with attach_rank_0(name, client, seconds) as cache:
        assert cache.lane(0).rows() == 6
    killer.join()


def test_a_wait_for_a_rank_is_broken_off_by_ctrl_c(start, name, client):
    start("writer")
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, _thread.interrupt_main).start()
        attach_rank_0(name, client, None)
