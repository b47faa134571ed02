"""A child that dies, hangs, forks or talks nonsense: it ends, and nothing that it started is left."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import ROOT, wait_until

sys.path.insert(0, str(Path(__file__).parent))
from children import Mark, parent

from analyzer.capture.process.child_process import Child, end_with_parent
from analyzer.model.contract.child_messages import (
    CaptureDone,
    Message,
    StageBegun,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="how Linux hands on orphans"
)


@pytest.fixture
def mark() -> Iterator[Mark]:
    mark = Mark()
    yield mark
    left = mark.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "a process was left behind"


def start(mark: Mark, body: str, folder: Path) -> Child:
    return Child(mark.command(body), folder / "log", os.environ)


def run(mark: Mark, body: str, folder: Path) -> tuple[list[Message], int | None]:
    child = start(mark, body, folder)
    try:
        messages = list(child.messages())
    finally:
        child.close()
    return messages, child.code


ENDS = {
    "well": ("done()", [CaptureDone()], 0),
    "with a status": ("stage('a'); os._exit(3)", [StageBegun("a")], 3),
    "by a signal": ("os.kill(os.getpid(), signal.SIGSEGV)", [], -signal.SIGSEGV),
    "nonsense": (
        r"os.write(1, b'{\n[1]\nnull\n\xff\n{}\n'); say('said'); say('stage', stage=1); "
        "done(); os.write(1, b'{')",
        [CaptureDone()],
        0,
    ),
    "much": ("[stage(f'{n:<9000}') for n in range(100)]", None, 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str, mark: Mark, tmp_path: Path) -> None:
    body, expected, code = ENDS[name]
    messages, ended = run(mark, body, tmp_path)
    assert ended == code
    if expected is None:
        assert [int(message.stage) for message in messages] == list(range(100))
    else:
        assert messages == expected


def test_yields_time(mark: Mark, tmp_path: Path) -> None:
    child = start(mark, "os.read(0, 1); stage(str(os.nice(0))); done()", tmp_path)
    try:
        child.yield_time(7)
        child.send(b"now")
        assert next(child.messages()) == StageBegun("7")
    finally:
        child.close()


STRAYS = {
    "a child of its own": "sleeper(session=False); done()",
    "in another session": "sleeper(); done()",
    "an orphan of an orphan": "if not os.fork():\n sleeper(); os._exit(0)\nos.wait(); done()",
    "a fork that holds the pipe": "done()\nif not os.fork():\n"
    " os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
}


@pytest.mark.parametrize("name", STRAYS)
def test_what_outlives_the_child_is_ended(
    name: str, mark: Mark, tmp_path: Path
) -> None:
    messages, _ = run(mark, STRAYS[name], tmp_path)
    assert messages == [CaptureDone()]


def test_it_can_be_ended(mark: Mark, tmp_path: Path) -> None:
    """One that does not heed a plain kill, with a stray that does not either."""
    child = start(
        mark,
        "for n in (2, 15, 1): signal.signal(n, signal.SIG_IGN)\n"
        "sleeper(); stage('x'); time.sleep(1000)",
        tmp_path,
    )
    assert next(child.messages()) == StageBegun("x")
    child.limit_time(0.3)
    assert list(child.messages()) == []
    child.close()
    assert child.code == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_who_waits_for_it(number: int, mark: Mark, tmp_path: Path) -> None:
    """However that process ends, the child, its strays and the folder in the making go too."""
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "half").write_text("x")
    watch = f"from {end_with_parent.__module__} import end_with_parent, Path\n"
    watch += f"end_with_parent(Path({str(staging)!r}))\n"
    body = watch + "sleeper(); stage('x'); time.sleep(1000)"
    waiting = parent(mark.command(body), staging, ROOT)
    assert waiting.stdout.readline() == b"StageBegun(stage='x')\n"
    assert len(mark.left()) >= 2
    os.kill(waiting.pid, number)
    waiting.wait(timeout=600)
    waiting.stdout.close()
    assert wait_until(lambda: not mark.left())
    assert wait_until(lambda: not staging.exists())
