"""Capture a live model or step from the user's own Python process."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.launch import capture
from analyzer.capture.process.run_folders import (
    check_writable,
    make_default_path,
    make_staging_folder,
    publish,
)
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.errors import TargetError

if TYPE_CHECKING:
    from analyzer.capture.run.profiled_run import Captured


def capture_live(
    target: Any, options: CaptureOptions, out: Path | None, *, force: bool = False
) -> Path:
    """Run ``target``'s step and return the run folder.

    In this process where its allocator already writes memory events (a GPU, or
    ``TF_CPU_ALLOCATOR_USE_BFC=1`` from the start), because then the user's own step, weights and
    inputs are measured. Otherwise TensorFlow would have to be imported anew: a Keras model is
    saved, without its values, and captured in a child process; a step that lives only in this
    process cannot be.

    Args:
        target: A Keras model, a ``tf.function`` or what makes a step.
        options: How the step is made and run.
        out: Where the run folder goes; None for the usual place.
        force: Whether a run folder that is there may be replaced.

    Raises:
        TargetError: the step lives only in this process, and this process cannot trace it.
    """
    spec = _live_spec(target)
    name = spec.text
    out = (
        out or make_default_path(spec)
    ).absolute()  # the step's code may change the working folder
    check_writable(out, force=force)
    if not options.gpu and can_trace_here():
        return _capture_here(target, spec, options, out, force=force)
    if hasattr(target, "get_config") and hasattr(target, "layers"):
        with _saved(target) as path:
            file = TargetSpec(text=name, kind=TargetKind.KERAS_FILE, path=str(path))
            keeps = options.jit is not None or bool(options.gpu)  # the child's Keras sees a GPU
            chosen = replace(options, jit=options.jit if keeps else _jit_of(target))
            return capture(file, chosen, out, force=force, progress=lambda stage, share: None)
    if options.gpu:
        raise TargetError(
            "A phantom card needs a process of its own, and a function cannot be handed to one.",
            hint="Name the step instead: analyzer.trace('file.py:make_step', gpu=...).",
        )
    raise TargetError(
        "TensorFlow runs in this process on an allocator that writes no memory events.",
        hint="Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow is imported, or name the step "
        "instead: analyzer.trace('file.py:make_step').",
    )


def capture_unrun(
    target: Any, options: CaptureOptions, out: Path | None, *, force: bool = False
) -> Path:
    """Note the graph of a live model's or function's step, in this process; nothing of it runs.

    Args:
        target: A Keras model, a ``tf.function`` or what makes a step.
        options: How the step is made and run.
        out: Where the run folder goes; None for the usual place.
        force: Whether a run folder that is there may be replaced.

    Raises:
        TargetError: the step cannot be made or traced.
    """
    from analyzer.capture.graph.estimate_capture import capture_unrun_live_step
    from analyzer.capture.targets.resolve_target import make_program

    spec = _live_spec(target)
    out = (
        out or make_default_path(spec)
    ).absolute()  # the step's code may change the working folder
    check_writable(out, force=force)
    with make_staging_folder(out) as staging:
        with _choosing_jit_anew(target, options):
            captured = capture_unrun_live_step(
                lambda: make_program(target, spec.text, options), options
            )
        return _write(captured, spec, staging, out, force=force)


def _live_spec(target: Any) -> TargetSpec:
    name = str(getattr(target, "name", None) or getattr(target, "__name__", None) or "step")
    return TargetSpec(text=name, kind=TargetKind.MODULE, path="", attribute=name)


def _write(captured: Captured, spec: TargetSpec, staging: Path, out: Path, *, force: bool) -> Path:
    from analyzer.capture.process.capture_worker import write_run

    target = TargetNote(text=spec.text, kind="live", name=spec.name)
    captured.run = replace(captured.run, target=target, from_process_start=False)
    write_run(staging, captured)
    return publish(staging, out, force=force)


def can_trace_here() -> bool:
    """Say whether TensorFlow's allocator writes memory events in this process, or will."""
    wanted = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
        return True
    import tensorflow as tf

    return wanted or bool(tf.config.list_physical_devices("GPU"))


def _capture_here(
    target: Any, spec: TargetSpec, options: CaptureOptions, out: Path, *, force: bool
) -> Path:
    from analyzer.capture.run.profiled_run import profiling, run_steps
    from analyzer.capture.targets.resolve_target import make_program

    with make_staging_folder(out) as staging:
        with profiling(staging):
            captured = run_steps(
                lambda: make_program(target, spec.text, options),
                options.step_count,
                lambda stage, share: None,
                own_process=False,
            )
        return _write(captured, spec, staging, out, force=force)


@contextlib.contextmanager
def _choosing_jit_anew(model: Any, options: CaptureOptions) -> Iterator[None]:
    """Let a model compiled here, on a machine without a GPU, choose XLA anew for the card asked about.

    Keras has turned ``jit_compile="auto"`` into False by then and kept no trace of it; a model compiled
    with False on purpose is asked about with ``jit=False``.
    """
    from analyzer.capture.private_names import get_chosen_jit, set_chosen_jit

    kept = get_chosen_jit(model)
    if not options.gpu or options.jit is not None or kept is not False:
        yield
        return
    set_chosen_jit(model, None)
    try:
        yield
    finally:
        set_chosen_jit(model, kept)


def _jit_of(model: Any) -> bool | None:
    return bool(model.jit_compile) if getattr(model, "compiled", False) else None


@contextlib.contextmanager
def _saved(model: Any) -> Iterator[Path]:
    """Save the model beside nothing of the user's: a temporary folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="tf-memory-analyzer-") as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
        except Exception as error:
            raise TargetError(
                f"The model {model.name!r} cannot be saved to be captured: {error}",
                hint="Name its code instead: analyzer.trace('file.py:build').",
            ) from error
        yield path
