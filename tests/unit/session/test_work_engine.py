"""Processes of this machine: nothing that they made outlives them."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from builders import wait_until
from deaths import die_always, die_once

from analyzer.session.work_engine import run_all


@pytest.mark.parametrize("is_ended_early", [True, False])
def test_temporary_folders_of_the_processes_are_removed(
    is_ended_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = run_all(tempfile.mkdtemp, ["one", "two", "three"], workers=2)
    _, made = next(results)
    assert tmp_path in Path(made).parents
    if is_ended_early:
        results.close()  # type: ignore[attr-defined]
    else:
        assert len(list(results)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_death_loses_nothing(tmp_path: Path) -> None:
    asked = [(tmp_path, number) for number in range(3)]
    # WHEN a process is killed in a call THEN another one calls again
    assert dict(run_all(die_once, asked, workers=2)) == {0: 0, 1: 1, 2: 2}
    assert (tmp_path / "died").exists()
    # AND where that kills each process, this call alone is given up
    assert dict(run_all(die_always, asked, workers=2)) == {0: 0, 1: None, 2: 2}


INTERRUPTED = """
import time
from analyzer.session.work_engine import run_all
for _ in run_all(time.sleep, [0.01, 300, 300], workers=2):
    print("begun", flush=True)
"""


def test_an_interrupt_leaves_no_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=600) != 0
    process.stdout.close()
    assert wait_until(lambda: not _is_group_alive(process.pid))


def _is_group_alive(group: int) -> bool:
    """Whether a process of the group runs; one that ended and was not collected does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False
