"""Ctrl-C ends a program and gives its report; a later one ends the report."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import COMMAND

SLEEPS = """
print("begun", flush=True)
import time
time.sleep(60)
"""
TRAINS = """
import tensorflow as tf
slope = tf.Variable(tf.ones((64, 64)))
for step in range(10**9):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(slope * slope)
    slope.assign_sub(0.001 * tape.gradient(loss, slope))
    if step == 40:
        print("begun", flush=True)
"""


def interrupt(folder: Path, code: str, gaps_s: tuple[float, ...]) -> tuple[int, str]:
    """Press Ctrl-C with gaps, as a terminal does; return the status and stderr."""
    (folder / "program.py").write_text(code)
    command = subprocess.Popen(
        [sys.executable, str(COMMAND), "trace", "program.py", "--out", "out"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while command.stdout.readline().strip() != "begun":
        assert command.poll() is None
    time.sleep(0.3)
    for gap_s in (0.0, *gaps_s):
        time.sleep(gap_s)
        os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=600)
    return command.returncode, said


@pytest.mark.parametrize("gap_s", [0.0, 0.05, 0.3])
def test_interrupts_in_quick_succession_are_one(tmp_path: Path, gap_s: float) -> None:
    status, said = interrupt(tmp_path, SLEEPS, (gap_s,))
    assert status == 130
    assert said.count("Traceback") == 1  # the program's own
    assert "interrupted before any step" in said
    assert "analyzer/" not in said


@pytest.mark.slow
@pytest.mark.parametrize("gaps_s", [(), (0.0,), (0.05,), (0.3,), (0.05, 0.05)])
def test_ctrl_c_ends_the_program_and_gives_the_report(
    tmp_path: Path, gaps_s: tuple[float, ...]
) -> None:
    status, said = interrupt(tmp_path, TRAINS, gaps_s)
    assert status == 130
    assert said.count("Traceback") == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["program"]["ended"] == "KeyboardInterrupt"
    assert len(report["steps"]) == 5
