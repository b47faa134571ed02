"""Several captures in copies of one process: each as in a process of its own, nothing left of any."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from children import Mark

from analyzer.capture.process.child_process import ForkServers
from analyzer.capture.process.launch import capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.child_messages import CaptureKind, CaptureOptions
from analyzer.model.errors import FailureKind, TargetError
from analyzer.tracing.parse.run_folder import RUN_FILE, RunNote, read_run

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

@tf.function(input_signature=[tf.TensorSpec([None, 4])])
def hangs(x):
    import time
    time.sleep(600)
    return x

def dies():
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(%MARK%)"
    subprocess.Popen([sys.executable, "-c", code, "%MARK%"], start_new_session=True)
    print("words", file=sys.stderr, flush=True)
    os._exit(3)
"""


def test_copies_are_as_processes_of_their_own(tmp_path: Path) -> None:
    mark = Mark()
    (tmp_path / "targets.py").write_text(TARGETS.replace("%MARK%", mark.text))
    place = tmp_path / "place"
    place.mkdir()

    def noted(
        name: str,
        size: int,
        copies: ForkServers | None,
        kind: CaptureKind = "static",
        limit_s: float = 300.0,
    ) -> RunNote:
        folder = capture(
            parse_target(f"{tmp_path}/targets.py:{name}"),
            CaptureOptions(device="cpu", batch_size=size),
            tmp_path / "run",
            force=True,
            kind=kind,
            copies=copies,
            limit_s=limit_s,
        )
        return read_run(folder / RUN_FILE)

    with ForkServers(place) as copies:
        first = noted("step", 2, copies)
        with pytest.raises(TargetError, match=r"exit code 3.*words"):
            noted("dies", 2, copies)
        with pytest.raises(TargetError, match="did not end in 1 s") as late:
            noted("hangs", 2, copies, "sizes", 1.0)
        assert late.value.kind is FailureKind.TIMED_OUT
        assert noted("step", 2, copies, "sizes").error is None
        second = noted("step", 8, copies)
    assert mark.left() == [], "what a copy started is ended with the server"
    alone = noted("step", 8, None)
    assert [op.outputs for op in second.ops] == [op.outputs for op in alone.ops]
    assert [op.name for op in second.ops] == [op.name for op in first.ops]
    assert second.inputs == alone.inputs != first.inputs
    assert list(place.iterdir()) == []
