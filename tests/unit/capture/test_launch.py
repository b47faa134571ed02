"""A capture whose child is played by a script: what is told, what is kept, what is left."""

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
from builders import Ended, analyze, listing, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from children import Mark

from analyzer.capture.process import launch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work" / "t.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def trace(
    body: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Ended, set[str]]:
    """Capture with a child that does ``body``; return how it ended and what it left."""
    mark = Mark()
    monkeypatch.setattr(launch, "make_start_command", lambda *words: mark.command(body))
    done = analyze("trace", "t.py:step", "--out", "deep/run")
    assert mark.left() == []
    assert "Traceback" not in done.err
    return done, listing(place) - {"work", "tmp", "work/t.py"}


DEATHS = {
    "a status": ("stage('building'); os._exit(3)", 2, "exit code 3 while building"),
    "nothing said": ("", 2, "exit code 0 while starting"),
    "killed": ("os.kill(os.getpid(), 9)", 2, r"died of SIGKILL \(Killed\)"),
    "a bug": ("print('why', file=sys.stderr); fail('Odd.', '', 1)", 1, "Odd. "
              "Its full output: .*/analyze-.*log\nanalyze: This is a bug"),
    "nothing written": ("done()", 2, "is gone"),
    "a hanging end": ("fail('No.', '', 2); time.sleep(1000)", 2, "No."),
}  # fmt: skip


@pytest.mark.parametrize("name", DEATHS)
def test_deaths(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PARTING_S", 0.5)
    body, code, says = DEATHS[name]
    done, left = trace(body, place, monkeypatch)
    assert (done.code, done.out) == (code, "")
    assert re.search(says, done.err), done.err
    assert ("is a bug" in done.err) is (code == 1)
    assert done.err.count("\n") == (2 if code == 1 else 1)
    # All that is left is a log that the message names.
    assert {str(place / path) for path in left} == set(
        re.findall(r"/\S+\.log", done.err)
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_signals(
    number: int, code: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is stuck, and deaf, and has started another."""

    def send() -> None:
        wait_until((place / "begun").exists)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    done, left = trace(
        "for n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\n"
        "sleeper(); stage('running'); "
        f"open({str(place / 'begun')!r}, 'w').close(); time.sleep(1000)",
        place, monkeypatch,
    )  # fmt: skip
    sender.join()
    assert done.code == code
    assert left == {"begun"}
    if number == signal.SIGINT:
        assert done.err.splitlines()[1:] == [
            "analyze: Interrupted; no run was written."
        ]
