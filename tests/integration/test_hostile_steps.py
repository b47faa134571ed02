"""Targets that crash, hang, fork, leave or are shot at: told in one line, and nothing left behind.

After each: no process, no file but what was asked for, and no file of the user's changed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import COMMAND, listing, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="strays are looked for in /proc"
)


def some(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters, of which all but the first take part only with ``-m slow``."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] * (place > 0))
        for place, name in enumerate(names)
    ]


HEAD = "import ctypes, os, signal, subprocess, sys, threading, time\nimport tensorflow as tf, keras\n"
MODEL = """
def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
"""
STUCK = """
empty = tf.queue.FIFOQueue(1, tf.float32)
@tf.function
def stuck(x):
    print("traced", flush=True)
    return empty.dequeue()
"""
DEAF = "for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)\n"
SLEEPER = "subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
FORK = "if not os.fork():\n    os.setsid(); time.sleep(3600)\n"


@dataclass
class Place:
    """A folder to run the command in, and the means to find what a run leaves behind."""

    folder: Path
    temporary: Path
    mark: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, code: str, *arguments: str, name: str = "t.py"
    ) -> subprocess.Popen[bytes]:
        (self.folder / name).write_text(HEAD + code)
        process = subprocess.Popen(
            [sys.executable, str(COMMAND), *arguments],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.temporary), "HOSTILE": self.mark},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, code: str, *arguments: str, name: str = "t.py") -> tuple[int, str]:
        """Run the command to its end; return code and stderr, after looking for what it left."""
        return self.ended(self.start(code, *arguments, name=name))

    def ended(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        _, err = process.communicate(timeout=600)
        text = err.decode()
        assert "Traceback" not in text, text
        assert "is a bug" not in text, text
        assert self.strays() == []
        for left in listing(self.temporary):
            assert str(self.temporary / left) in text, (
                f"{left} is left behind, and not named"
            )
        return process.returncode, text

    def strays(self) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    f"HOSTILE={self.mark}\0".encode()
                    in (folder / "environ").read_bytes()
                ):
                    found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
        return found

    def wait_for(self, process: subprocess.Popen[bytes], text: str) -> None:
        """Wait until the child's log has a text."""
        limit = time.monotonic() + 600
        while time.monotonic() < limit and process.poll() is None:
            for log in self.folder.rglob("capture.log"):
                if text in log.read_text(errors="replace"):
                    return
            time.sleep(0.1)
        raise AssertionError(f"{text!r} was never printed")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "work", tmp_path / "tmp", f"{os.getpid()}-{tmp_path.name}")
    place.folder.mkdir()
    place.temporary.mkdir()
    yield place
    for process in place.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert wait_until(lambda: not place.strays()), place.strays()


CRASHES = {
    "os._exit": (
        "print('no data here')\nos._exit(3)",
        "ended its own process with exit code 3 while building the model; its last output: "
        "no data here",
    ),
    "sys.exit": ("def model(): sys.exit(4)", "sys.exit(4)"),
    "arguments": ("sys.exit(2)", "gets no arguments"),
    "segfault": ("def model():\n    ctypes.string_at(0)", "died of SIGSEGV (Segmentation fault) at "
                 "t.py:4 while building the model"),
    "killed": ("os.kill(os.getpid(), 9)", "died of SIGKILL (Killed) while building the model"),
    "raises": ("class Odd(BaseException): pass\ndef model():\n    raise Odd('why')",
               "t.py:5: Odd: why"),
    "starts and dies": (f"{SLEEPER}{FORK}os._exit(6)", "exit code 6"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(CRASHES))
def test_a_crash_is_the_targets(name: str, place: Place) -> None:
    body, says = CRASHES[name]
    code, err = place.run(
        body + "\n", "trace", "t.py:model", "--shape", "4", "--out", "run"
    )
    assert code == 2, err
    assert err.count("\n") == 1, err
    assert says in err
    assert "cuInit" not in err
    assert listing(place.folder) == {"t.py"}


STRAYS = {
    "sleeper and fork": SLEEPER + FORK,
    "fork": FORK,
    "deaf fork": "if not os.fork():\n    " + DEAF + "    time.sleep(3600)\n",
    "thread": "threading.Thread(target=time.sleep, args=(3600,)).start()\n",
    "much": "print('x' * 50_000_000)\n",
    "changes folder": "os.mkdir('there'); os.chdir('there')\n",
}


@pytest.mark.parametrize("name", some(STRAYS))
def test_a_step_that_leaves_things_behind(name: str, place: Place) -> None:
    code, err = place.run(
        STRAYS[name] + MODEL, "trace", "t.py:model", "--out", "run", "-q"
    )
    assert code == 0, err
    assert {path.name for path in place.folder.iterdir()} <= {
        "t.py",
        "run",
        "there",
        "__pycache__",
    }
    assert (place.folder / "run" / "report.json").is_file()
    assert not list(place.folder.glob("there/*"))


@pytest.mark.parametrize("deaf", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_stuck_in_tensorflow(
    number: int, deaf: bool, place: Place
) -> None:
    # GIVEN a step that never comes back to Python, in one case deaf to whatever it is asked
    body = STUCK + SLEEPER + (DEAF if deaf else "")
    body += "def target(): return stuck, (tf.ones([4]),)\n"
    process = place.start(body, "trace", "t.py:target", "--out", "a/run")
    place.wait_for(process, "traced")
    time.sleep(1)
    # WHEN the command gets the signal
    os.kill(process.pid, number)
    if number == signal.SIGINT:
        assert process.stderr.readline().startswith(b"analyze: Interrupted: ending")
    code, err = place.ended(process)
    # THEN it ends, and all of it
    assert code == 128 + number
    assert ("no run was written" if number == signal.SIGINT else "Ended by") in err
    assert listing(place.folder) == {"t.py"}


def test_kill_9_of_the_command(place: Place) -> None:
    body = STUCK + SLEEPER + DEAF + "def target(): return stuck, (tf.ones([4]),)\n"
    process = place.start(body, "trace", "t.py:target", "--out", "run")
    place.wait_for(process, "traced")
    process.kill()
    process.communicate()
    assert wait_until(lambda: not place.strays() and len(listing(place.folder)) == 1)
    assert listing(place.folder) == {"t.py"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk(place: Place) -> None:
    small = place.folder / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)],
        check=False, capture_output=True,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        code, err = place.run(MODEL, "trace", "t.py:model", "--out", "small/run")
        assert code == 2, err
        assert err.count("\n") == 1, err
        assert "disk is full" in err or "No space left" in err, err
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)
