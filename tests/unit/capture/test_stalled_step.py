"""A step that waits for memory is ended, because TensorFlow itself would wait for minutes."""

from __future__ import annotations

import threading

from analyzer.capture.run import profiled_run
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.run_note import StepConfig


def run(call, on_stall) -> None:
    program = Program(call=call, args=(), config=StepConfig())
    profiled_run.run_steps(
        lambda: program, 1, lambda stage, share: None, is_trial=True, on_stall=on_stall
    )


def test_step_without_progress_is_reported(monkeypatch) -> None:
    monkeypatch.setattr(profiled_run, "_STALL_S", 0.5)
    stalled = threading.Event()
    run(lambda: stalled.wait(20.0), stalled.set)
    assert stalled.is_set()
