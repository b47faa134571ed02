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

from analyzer.capture.process import run_folders
from analyzer.capture.process.child_environment import check_packages
from analyzer.capture.process.launch import capture
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.model.contract.run_note import TargetNote
from analyzer.model.errors import TargetError

if TYPE_CHECKING:
    from analyzer.capture.run.step_capture import Captured


def capture_live(
    target: Any, options: CaptureOptions, out: Path | None, *, force: bool = False
) -> Path:
    """Run ``target``'s step and return the run folder.

    It runs in this process if the allocator already writes memory events (a GPU, or
    ``TF_CPU_ALLOCATOR_USE_BFC=1`` from the start): then the user's own weights and inputs are measured.
    Otherwise a Keras model is saved and captured in a child process; other steps exist only in this
    process and raise TargetError.
    """
    spec, out = _check_target(target, out, force=force)
    if not options.gpu and can_trace_here():
        from analyzer.capture.run.profiled_run import profiling, run_steps
        from analyzer.capture.targets.resolve_target import make_program

        with run_folders.make_staging_folder(out) as staging:
            with profiling(staging):
                captured = run_steps(
                    lambda: make_program(target, spec.text, options),
                    options.step_count,
                    lambda stage, share: None,
                    own_process=False,
                )
            return _write(captured, spec, staging, out, force=force)
    if hasattr(target, "get_config") and hasattr(target, "layers"):
        with _save_model(target) as path:
            file = TargetSpec(text=spec.text, kind=TargetKind.KERAS_FILE, path=str(path))
            jit = options.jit
            if jit is None and not options.gpu and getattr(target, "compiled", False):
                jit = bool(target.jit_compile)  # on a card, the child's Keras chooses for the card
            options = replace(options, jit=jit)
            return capture(file, options, out, force=force, progress=lambda stage, share: None)
    if options.gpu:
        raise TargetError(
            "A simulated card needs a process of its own, and a function cannot be passed to one.",
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
    """Capture the graph of a live step in this process, without running it; return the run folder."""
    check_packages()
    from analyzer.capture.graph.estimate_capture import capture_unrun_live_step
    from analyzer.capture.targets.resolve_target import make_program

    spec, out = _check_target(target, out, force=force)
    with run_folders.make_staging_folder(out) as staging:
        with _reset_jit_choice(target, options):
            captured = capture_unrun_live_step(
                lambda: make_program(target, spec.text, options), options
            )
        return _write(captured, spec, staging, out, force=force)


def can_trace_here() -> bool:
    """Return whether TensorFlow's allocator writes memory events in this process.

    If TensorFlow is not imported yet, the allocator is chosen now. InputError if it cannot be used.
    """
    check_packages()
    is_chosen = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
        return True
    import tensorflow as tf

    return is_chosen or bool(tf.config.list_physical_devices("GPU"))


def _check_target(target: Any, out: Path | None, *, force: bool) -> tuple[TargetSpec, Path]:
    """Return a live target's spec and its folder, which is absolute: the step may change folders."""
    name = str(getattr(target, "name", None) or getattr(target, "__name__", None) or "step")
    spec = TargetSpec(text=name, kind=TargetKind.MODULE, path="", attribute=name)
    out = (out or run_folders.make_default_path(spec)).absolute()
    run_folders.check_writable(out, force=force)
    return spec, out


def _write(captured: Captured, spec: TargetSpec, staging: Path, out: Path, *, force: bool) -> Path:
    from analyzer.capture.process.capture_worker import write_run

    target = TargetNote(text=spec.text, kind="live", name=spec.name)
    captured.run = replace(captured.run, target=target, from_process_start=False)
    write_run(staging, captured)
    return run_folders.publish(staging, out, force=force)


@contextlib.contextmanager
def _reset_jit_choice(model: Any, options: CaptureOptions) -> Iterator[None]:
    """Let a model that was compiled here without a GPU choose XLA again for ``options.gpu``.

    Keras has replaced ``jit_compile="auto"`` by False and no longer knows it. A user whose model says
    False on purpose passes ``jit=False``.
    """
    from analyzer.capture.private_names import get_chosen_jit, set_chosen_jit

    choice = get_chosen_jit(model)
    if not options.gpu or options.jit is not None or choice is not False:
        yield
        return
    set_chosen_jit(model, None)
    try:
        yield
    finally:
        set_chosen_jit(model, choice)


@contextlib.contextmanager
def _save_model(model: Any) -> Iterator[Path]:
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
