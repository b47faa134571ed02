"""Several captures in copies of one process: each as in a process of its own, nothing left of any."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from children import Mark

from analyzer.capture.process.fork_servers import ForkServers
from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import FailureKind, TargetError
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote, read_run

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(
        sys.platform != "linux", reason="where copies end with their parent"
    ),
]

TARGETS = """
import os, subprocess, sys
import tensorflow as tf

taken = []

@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def step(x):
    taken.append(x)
    return tf.square(x) + len(taken)

def dies():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(%MARK%)"
    subprocess.Popen([sys.executable, "-c", code, "%MARK%"], start_new_session=True)
    print("words", file=sys.stderr, flush=True)
    os._exit(3)
"""


def test_copies_are_as_processes_of_their_own(tmp_path: Path) -> None:
    mark = Mark()
    (tmp_path / "targets.py").write_text(TARGETS.replace("%MARK%", mark.text))
    count = 0

    def noted(name: str, size: int, copies: ForkServers | None) -> RunNote:
        nonlocal count
        count += 1
        folder = capture(
            parse_target(f"{tmp_path}/targets.py:{name}"),
            CaptureOptions(device="cpu", batch_size=size),
            tmp_path / f"run-{count}",
            force=False,
            progress=lambda stage, share: None,
            kind="static",
            copies=copies,
        )
        return read_run(folder / RUN_FILE)

    place = Path(tempfile.mkdtemp(dir=tmp_path))
    with ForkServers(place) as copies:
        first = noted("step", 2, copies)
        with pytest.raises(TargetError, match=r"exit code 3.*words"):
            noted("dies", 2, copies)
        second = noted("step", 8, copies)
    assert mark.left() == [], "what a copy started is ended with the server"
    alone = noted("step", 8, None)
    assert [op.outputs for op in second.ops] == [op.outputs for op in alone.ops]
    assert [op.name for op in second.ops] == [op.name for op in first.ops]
    assert second.inputs == alone.inputs != first.inputs
    assert list(place.iterdir()) == []


STEPS = """
import tensorflow as tf

@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def step(x):
    return tf.square(x)

@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def hangs(x):
    import time
    time.sleep(600)
    return x

@tf.function(input_signature=[tf.TensorSpec([None, 1024, 1024])])
def large(x):
    return tf.reduce_sum(tf.square(x) * 2.0)
"""


def test_a_trial_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "targets.py").write_text(STEPS)
    options = CaptureOptions(device="cpu", batch_size=2)
    with ForkServers(Path(tempfile.mkdtemp(dir=tmp_path))) as copies:

        def try_step(name: str, limit_s: float) -> RunNote:
            folder = capture(
                parse_target(f"{tmp_path}/targets.py:{name}"),
                options,
                tmp_path / name,
                force=True,
                progress=lambda stage, share: None,
                kind="sizes",
                copies=copies,
                limit_s=limit_s,
            )
            return read_run(folder / RUN_FILE)

        assert try_step("step", 300.0).error is None
        with pytest.raises(TargetError, match="did not end in 1 s") as late:
            try_step("hangs", 1.0)
        assert late.value.kind is FailureKind.TIMED_OUT
        assert try_step("step", 300.0).error is None
