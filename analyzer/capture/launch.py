"""Start the child process that captures, and wait for its run folder. Needs no TensorFlow.

A child, because the allocator that writes memory events has to be chosen before TensorFlow is
imported, because a trace from the start of a process sees every buffer being born, and because a
step that takes the process down must not take the command down.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from analyzer.capture.spec import CaptureOptions, TargetSpec
from analyzer.errors import AnalyzerError, ExitCode, InputError, StepOutOfMemory, TargetError
from analyzer.parse.logdir import RUN_FILE

LOG_FILE: Final = "capture.log"
_UNKNOWN_FLAG: Final = "Unknown flag"  # "in XLA_FLAGS": xla/parse_flags_from_env.cc
_PATIENCE_S: Final = 60.0  # for the child to write its trace after Ctrl-C

Progress = Callable[[str, float], None]


def capture(
    spec: TargetSpec,
    options: CaptureOptions,
    out: Path,
    *,
    force: bool,
    progress: Progress,
    kind: str = "run",
) -> Path:
    """Run the target's step in a child process and return the run folder.

    The folder appears whole or not at all. A step that fails still leaves one, with its error in
    ``run.json``.

    Args:
        spec: What to run.
        options: How.
        out: The folder to make.
        force: Replace ``out`` where it holds an earlier run.
        progress: Called with the stage and the share done, 0 to 1.
        kind: ``run`` to run the step, ``static`` to note its graph and run nothing.

    Raises:
        InputError: ``out`` cannot be used, or the target cannot be made a step.
        StepOutOfMemory: the system killed the child.
        AnalyzerError: the child died otherwise.
    """
    check_free(out, force=force)
    with staging_folder(out) as staging:
        request = staging / "request.json"
        request.write_text(
            json.dumps(
                {
                    "target": {**asdict(spec), "kind": spec.kind.value},
                    "options": options.to_json(),
                    "folder": str(staging),
                    "kind": kind,
                }
            ),
            encoding="utf-8",
        )
        _run(request, staging / LOG_FILE, spec, progress, keeps_a_part=kind == "run")
        request.unlink()
        publish(staging, out)
    return out


def default_out(spec: TargetSpec) -> Path:
    """Return ``traces/NAME-TIME`` in the working folder."""
    now = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("traces") / f"{spec.name}-{now}"


def check_free(out: Path, *, force: bool) -> None:
    """Raise InputError where ``out`` exists and holds something."""
    if out.is_file():
        raise InputError(f"{out} is a file.", hint="Name a folder with --out.")
    if out.is_dir() and any(out.iterdir()):
        if not force:
            raise InputError(f"{out} is not empty.", hint="Name another --out, or add --force.")
        if not (out / RUN_FILE).is_file():
            raise InputError(
                f"{out} holds something that is no run of ours.", hint="Name another --out."
            )


@contextlib.contextmanager
def staging_folder(out: Path) -> Iterator[Path]:
    """Make a folder beside ``out``, gone again unless it was moved."""
    missing = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}.", hint="Name another --out."
        ) from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only where nothing was written into it


def publish(staging: Path, out: Path) -> None:
    """Make the finished folder appear as ``out``, in the place of an earlier run."""
    if out.exists():
        shutil.rmtree(out)
    staging.chmod(0o755)
    staging.rename(out)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    environment.setdefault("KERAS_BACKEND", "tensorflow")
    # The package must be found even where it runs from a checkout.
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _run(
    request: Path, log: Path, spec: TargetSpec, progress: Progress, *, keeps_a_part: bool
) -> None:
    """Run the child to its end; an interrupted one may still write what it has, if that is of use."""
    with log.open("wb") as log_file:
        child = subprocess.Popen(
            [sys.executable, "-m", "analyzer.capture.worker", str(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            env=_environment(),
        )
        last: dict[str, Any] = {}
        try:
            for message in _messages(child):
                last = message
                if "stage" in message:
                    progress(message["stage"], message["share"])
            child.wait()
        except KeyboardInterrupt:
            if not keeps_a_part:
                raise
            # The child has been sent the same signal by the terminal: let it write its trace.
            last = _wait_after_interrupt(child, last)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    _judge(child.returncode, last, log, spec)


def _messages(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None
    for line in child.stdout:
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if isinstance(message, dict):
                yield message


def _wait_after_interrupt(child: subprocess.Popen[bytes], last: dict[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        child.send_signal(signal.SIGINT)
    with contextlib.suppress(KeyboardInterrupt):
        for message in _messages(child):
            last = message
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_PATIENCE_S)
    if "done" not in last:
        raise KeyboardInterrupt
    return last


def _judge(code: int, last: dict[str, Any], log: Path, spec: TargetSpec) -> None:
    """Raise what the child's end means; return where it left a run folder."""
    if "done" in last:
        return
    if "error" in last:
        if last["exit_code"] == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
        kind = TargetError if last["exit_code"] == ExitCode.BAD_INPUT else AnalyzerError
        raise kind(last["error"], hint=last["hint"])
    stage = last.get("stage", "starting")
    if code == -signal.SIGKILL:
        raise StepOutOfMemory(
            f"The system killed the process while {stage}: it ran out of host memory.",
            hint="Try a smaller --batch-size.",
        )
    word = _last_line(log)
    if _UNKNOWN_FLAG in word:
        raise InputError(
            f"TensorFlow ends itself: {word[word.index(_UNKNOWN_FLAG) :]}.",
            hint="Correct the environment variable XLA_FLAGS.",
        )
    if code < 0:
        name = signal.Signals(-code).name
        raise AnalyzerError(f"The process died of {name} while {stage}: {word}")
    raise AnalyzerError(f"The capture of {spec.text} failed while {stage}: {word}")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else "no word in the log"
