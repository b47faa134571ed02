"""Several captures in copies of one process: each as in a process of its own, nothing left of any."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from children import Mark
from simulated_cards import NEEDS_CARDS

from analyzer.capture.process.child_process import ForkServers
from analyzer.capture.process.launch import capture, start_fork_server
from analyzer.capture.targets.target_spec import parse_target
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import ExitCode, FailureKind, InputError, TargetError
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import RunNote, read_run

pytestmark = [
    pytest.mark.tf,
    pytest.mark.skipif(sys.platform != "linux", reason="where copies end with their parent"),
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
        assert mark.left() == [], "what a copy started is ended with it"
        second = noted("step", 8, copies)
    alone = noted("step", 8, None)
    assert [op.outputs for op in second.ops] == [op.outputs for op in alone.ops]
    assert [op.name for op in second.ops] == [op.name for op in first.ops]
    assert second.inputs == alone.inputs != first.inputs
    assert list(place.iterdir()) == []


PLACES = """
import ctypes, pathlib
import tensorflow as tf

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
with pathlib.Path(__file__).with_name("places").open("a") as file:
    print(libc.malloc(8192), libc.malloc(1 << 24), file=file)

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


@pytest.mark.slow
def test_trials_in_copies_say_whether_the_step_ended_and_lie_at_addresses_of_their_own(
    tmp_path: Path,
) -> None:
    """Copies at the same addresses would take the same order of the ops."""
    (tmp_path / "targets.py").write_text(PLACES)
    limited = CaptureOptions(device="cpu", memory_limit_bytes=64 << 20)
    with ForkServers(Path(tempfile.mkdtemp(dir=tmp_path))) as copies:
        start_fork_server(parse_target(f"{tmp_path}/targets.py:step"), limited, "sizes", copies)
        for name, size, ends in (("step", 2, True), ("large", 2, True), ("large", 64, False)):
            folder = capture(
                parse_target(f"{tmp_path}/targets.py:{name}"),
                replace(limited, batch_size=size),
                tmp_path / f"{name}-{size}",
                force=False,
                progress=lambda stage, share: None,
                kind="sizes",
                copies=copies,
            )
            note = read_run(folder / RUN_FILE)
            assert (note.error is None) == ends
            if note.error is not None:
                assert note.error.exit_code is ExitCode.STEP_OUT_OF_MEMORY
            assert not note.ops
            assert not list(folder.rglob("*.xplane.pb"))
        assert len(copies._servers) == 1, "what was begun is what is copied"
    lines = (tmp_path / "places").read_text().splitlines()
    small, mapped = zip(*(line.split() for line in lines), strict=True)
    assert len(set(small)) == len(set(mapped)) == 3


class _Recorder(ForkServers):
    """Records the environment of each capture and starts no process."""

    environments: list[Mapping[str, str]]

    def start(self, log: Path, environment: Mapping[str, str]) -> NoReturn:
        self.environments.append(environment)
        raise InterruptedError


@NEEDS_CARDS
def test_trials_on_a_card_share_one_process(tmp_path: Path) -> None:
    (tmp_path / "targets.py").write_text(PLACES)
    spec = parse_target(f"{tmp_path}/targets.py:step")
    options = CaptureOptions(gpu="t4", steps=3)
    with _Recorder(Path(tempfile.mkdtemp(dir=tmp_path))) as copies:
        copies.environments = []
        with contextlib.suppress(InterruptedError):
            start_fork_server(spec, options, "sizes", copies)
        for size in (2, 4):
            with contextlib.suppress(InputError, InterruptedError):
                capture(
                    spec,
                    replace(options, batch_size=size),
                    tmp_path / str(size),
                    force=False,
                    progress=lambda stage, share: None,
                    kind="sizes",
                    copies=copies,
                )
    assert len(copies.environments) == 3
    assert copies.environments[0] == copies.environments[1] == copies.environments[2]


def test_a_trial_that_hangs_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "targets.py").write_text(PLACES)
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
        with pytest.raises(TargetError, match="did not end in 5 s") as late:
            try_step("hangs", 5.0)
        assert late.value.kind is FailureKind.TIMED_OUT
        assert try_step("step", 300.0).error is None


COUNTED = """
import pathlib
import keras

class Counted(keras.layers.Layer):
    def call(self, x):
        with pathlib.Path(__file__).with_name("calls").open("a") as file:
            file.write("x")
        return 2.0 * x

def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), Counted()])
"""


@pytest.mark.slow
def test_a_trial_traces_the_step_once(tmp_path: Path) -> None:
    """A step that makes the optimizer's variables is traced twice, which takes seconds."""
    (tmp_path / "targets.py").write_text(COUNTED)
    calls = tmp_path / "calls"
    counts = []
    for kind in ("static", "sizes"):
        capture(
            parse_target(f"{tmp_path}/targets.py:model"),
            CaptureOptions(device="cpu", batch_size=2, jit=False),
            tmp_path / kind,
            force=False,
            progress=lambda stage, share: None,
            kind=kind,
        )
        counts.append(len(calls.read_text()))
        calls.unlink()
    assert counts[0] == counts[1]
