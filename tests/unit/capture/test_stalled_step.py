"""A step that waits for memory is ended, because TensorFlow itself would wait for minutes."""

from __future__ import annotations

import hashlib
import threading
import time

from analyzer.capture.run import profiled_run
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.run_note import StepConfig


def run(call, on_stall) -> None:
    program = Program(call=call, args=(), config=StepConfig())
    profiled_run.run_steps(
        lambda: program, 1, lambda stage, share: None, then=lambda state: None, on_stall=on_stall
    )


def test_step_without_progress_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(profiled_run, "_STALL_S", 0.5)
    stalled = threading.Event()
    run(lambda: stalled.wait(20.0), stalled.set)
    assert stalled.is_set()


def test_working_step_is_not_reported(monkeypatch) -> None:
    monkeypatch.setattr(profiled_run, "_STALL_S", 1.2)
    stalled = threading.Event()

    def work() -> None:
        end_s = time.monotonic() + 2.0
        while time.monotonic() < end_s:
            sum(range(10_000))

    run(work, stalled.set)
    assert not stalled.is_set()


def test_step_that_waits_for_a_processor_is_not_reported(monkeypatch) -> None:
    """On a busy machine a ready thread may get hardly any time of a processor."""
    monkeypatch.setattr(profiled_run, "_STALL_S", 1.2)
    monkeypatch.setattr(profiled_run.time, "process_time", lambda: 0.0)
    stalled = threading.Event()

    def work() -> None:
        end_s = time.monotonic() + 3.0
        while time.monotonic() < end_s:
            hashlib.sha256(bytes(1 << 26))  # without the interpreter's lock

    run(work, stalled.set)
    assert not stalled.is_set()
