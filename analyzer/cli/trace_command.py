"""``analyze trace TARGET``: capture the memory of a step or a script, or open a trace; explain it."""

import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from analyzer.capture.targets.target_spec import (
    TargetForm,
    check_honoured,
    name_module,
    parse_card_assumptions,
    parse_target,
)
from analyzer.capture.watch.script_launch import LIVE_FILE, ScriptEnd, ScriptView
from analyzer.cli import ScriptStatus
from analyzer.cli.outputs import Outputs, RunPlace
from analyzer.cli.shared_options import (
    PLACE,
    STEP,
    BatchSize,
    ReplayOptions,
    Scheduler,
    StepFlags,
    argument,
    check_choice,
    option,
    refuse_options,
)
from analyzer.cli.stdout import progress_bar
from analyzer.model.contract.child_messages import (
    ASSUMPTIONS,
    DEFAULT_STEPS,
    SCRIPT_STEPS,
    SCRIPT_WARMUP_STEPS,
    CaptureOptions,
    TargetKind,
    TargetSpec,
    WatchRequest,
    WhatIf,
)
from analyzer.model.errors import USAGE_STATUS, ExitCode, InputError, LimitError
from analyzer.model.units import format_bytes, signed_bytes
from analyzer.report.untrusted import printable
from analyzer.session.opening import open_hosts
from analyzer.tracing.parse.run_folder import find_run, is_assignment

_ASSUMED = ", ".join(one.name for one in ASSUMPTIONS)


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Options that only ``trace`` has: of a capture, then of the reading of an existing trace."""

    batch_size: BatchSize = None
    steps: Annotated[
        int | None,
        option(
            f"Steps to trace; default {DEFAULT_STEPS}, {SCRIPT_STEPS} in a script.",
            panel=PLACE,
            least=1,
        ),
    ] = None
    warmup: Annotated[
        int | None,
        option(
            f"In a script: steps before the traced ones; default {SCRIPT_WARMUP_STEPS}.",
            panel=PLACE,
            least=1,
        ),
    ] = None
    live: Annotated[
        bool,
        option("With a script: show its memory and the slope while it runs."),
    ] = False
    device: Annotated[
        str,
        option(
            "cpu or gpu; default a GPU if the machine has one.",
            panel=PLACE,
        ),
    ] = ""
    gpu: Annotated[
        str,
        option(
            "Run on a simulated card with TensorFlow's own GPU runtime: t4, "
            "a100-80gb, 2xt4 ... (Linux on x86-64). --limit and --growth then "
            "configure TensorFlow itself. `analyze gpus list` shows all cards.",
            panel=PLACE,
        ),
    ] = ""
    module: Annotated[
        bool,
        option(
            "TARGET is a module to run as a script, as with python -m.",
            "-m",
            panel=STEP,
        ),
    ] = False
    assume: Annotated[
        list[str] | None,
        option(
            f"With --gpu: replace an answer of the card's libraries: {_ASSUMED}. Repeatable.",
            panel=PLACE,
            metavar="NAME=N",
        ),
    ] = None
    host: Annotated[
        str,
        option("Host to open, if a logdir has several; default all of them."),
    ] = ""
    run: Annotated[
        str,
        option("Run of a logdir, a folder in plugins/profile; default the newest."),
    ] = ""
    allocator: Annotated[
        str,
        option("Allocator to report; default the device's own."),
    ] = ""
    scheduler: Scheduler = ""
    redact: Annotated[
        bool,
        option(
            "With a trace: leave out names and paths, to share the result.", "--redact"
        ),
    ] = False


def trace(
    target: Annotated[
        str,
        argument(
            "keras:NAME, hub:PRESET, file.py:name, package.module:name, a .keras or "
            ".h5 file, a SavedModel folder; a whole script: script.py; or a logdir, "
            "run folder or .xplane.pb to open."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        argument(
            "Arguments of a script, after --: analyze trace train.py -- --epochs 2."
        ),
    ] = None,
    *,
    capture: TraceOptions,
    step: StepFlags,
    place: RunPlace,
    outputs: Outputs,
    replay: ReplayOptions,
) -> None:
    """Capture the memory of a step, or open a trace, and explain its use and how to reduce it.

    The step runs in its own process, on the allocator class that a GPU uses, and is traced from the
    start of the process.

    A Python file without a name (script.py, not script.py:name) runs as Python would run it, with its
    own arguments, input, output and exit code. A few of its steps are traced, and the report follows.
    """
    if is_assignment(Path(target)):
        from analyzer.tracing.xla.xla_dumps import describe_assignment

        for line in describe_assignment(Path(target)):
            typer.echo(printable(line, 2000))
        return

    spec = name_module(target) if capture.module else parse_target(target, scripts=True)
    outputs.check(spec.source)
    chosen, what_if = _capture_options(spec, capture, step, replay.what_if)
    _check_options(spec, chosen, capture)
    place.check(spec)

    if spec.kind is TargetKind.SCRIPT:
        request = WatchRequest(
            script=spec.path,
            is_module=capture.module,
            folder="",
            arguments=tuple(arguments or ()),
            steps=SCRIPT_STEPS if chosen.steps is None else chosen.steps,
            warmup=SCRIPT_WARMUP_STEPS if capture.warmup is None else capture.warmup,
            options=chosen,
        )
        view = _choose_view(is_live=capture.live)
        _trace_script(spec, request, place, outputs, what_if=what_if, view=view)

    if arguments:
        raise InputError(
            f"{spec.text} is not a script and takes no arguments ({arguments[0]!r}).",
            "Leave them out; options come before --.",
        )

    refuse_options(
        "cannot be used without a script",
        "Leave it out.",
        warmup=capture.warmup,
        live=capture.live,
    )
    _trace_step(spec, chosen, what_if, place, outputs, capture)


def _capture_options(
    spec: TargetSpec,
    capture: TraceOptions,
    step: StepFlags,
    what_if: WhatIf,
) -> tuple[CaptureOptions, WhatIf]:
    """Return the capture's options and the replay's; a simulated card takes limit and growth."""
    check_choice("--device", capture.device, ("cpu", "gpu"))
    chosen = step.to_capture(
        steps=capture.steps,
        batch_size=capture.batch_size,
        device=capture.device,
        gpu=capture.gpu,
    )

    if not capture.gpu or spec.is_trace:
        reason = "cannot be used without a simulated card"
        hint = "Add --gpu NAME, and name a model or a step."
        refuse_options(reason, hint, assume=bool(capture.assume))

        return chosen, what_if

    if capture.device:
        raise InputError(
            "--device and --gpu exclude each other: a simulated card is a GPU.",
            "Leave one out.",
        )

    if what_if.growth and what_if.memory_limit_bytes is not None:
        message = "--limit and --growth exclude each other on a simulated card, as in TensorFlow."
        raise InputError(message, "Leave one out.")

    from analyzer.simulated_card.card_environment import parse_cards

    parse_cards(capture.gpu)

    chosen = replace(
        chosen,
        memory_limit_bytes=what_if.memory_limit_bytes,
        growth=what_if.growth,
        assume=parse_card_assumptions(capture.assume or []),
    )

    return chosen, replace(what_if, memory_limit_bytes=None, growth=None)


def _check_options(
    spec: TargetSpec,
    chosen: CaptureOptions,
    capture: TraceOptions,
) -> None:
    """Refuse options that do not apply to the target."""
    if not spec.is_trace:
        refuse_options(
            f"cannot be used with {spec.text}, which is not a trace",
            "Leave it out, or open the trace afterwards.",
            host=capture.host,
            run=capture.run,
            allocator=capture.allocator,
            scheduler=capture.scheduler,
            redact=capture.redact,
        )
    else:
        check_honoured(spec.text, TargetForm.TRACE, chosen)
        refuse_options(
            f"cannot be used with {spec.text}, which shows the step as it ran",
            "Leave it out; the page of --html FILE judges the step on other cards.",
            gpu=chosen.gpu,
        )


def _trace_step(
    spec: TargetSpec,
    chosen: CaptureOptions,
    what_if: WhatIf,
    place: RunPlace,
    outputs: Outputs,
    capture: TraceOptions,
) -> None:
    """Trace a target's step or open its trace, write the outputs, and exit with its status."""
    is_trace = spec.is_trace
    with place.folder_for(spec) as folder:
        with progress_bar(outputs.progress):
            if is_trace:
                path = Path(spec.path)
                result = open_hosts(
                    find_run(path, capture.run) if capture.run else path,
                    scheduler=capture.scheduler,
                    is_parallel=True,
                    host=capture.host,
                    allocator=capture.allocator,
                    what_if=what_if,
                    search=any(outputs.paths),
                )
            else:
                from analyzer.session.target_results import trace_target

                result = trace_target(
                    spec,
                    chosen,
                    folder,
                    force=outputs.force,
                    save=not place.no_save,
                    what_if=what_if,
                )

        if capture.redact:
            from analyzer.report.redaction import redact_result

            result = redact_result(result)

        place.conclude(result, spec, folder, outputs)

    if not is_trace and result.exit_code is not ExitCode.OK:
        raise typer.Exit(result.exit_code)
    if result.is_over_limit:
        raise typer.Exit(ExitCode.OVER_LIMIT)


def _choose_view(*, is_live: bool) -> ScriptView | None:
    """Return the view of a running script, if it is asked for."""
    if not is_live:
        return None

    if not sys.stderr.isatty():
        raise InputError(
            "--live needs a terminal.",
            "Leave it out; the report follows.",
        )

    return show_live


def _trace_script(
    spec: TargetSpec,
    request: WatchRequest,
    place: RunPlace,
    outputs: Outputs,
    **settings: Any,
) -> NoReturn:
    """Run the script, report, and exit with the script's status, or with 2 if nothing was traced."""
    from analyzer.session.target_results import trace_script

    check_honoured(spec.text, TargetForm.SCRIPT, request.options)
    if spec.path.endswith(".py"):
        _check_syntax(spec)

    with place.folder_for(spec) as folder:
        end, result = trace_script(request, folder, force=outputs.force, **settings)
        if end.fault:
            last = end.fault.strip().splitlines()[-1:]
            _print_lines(
                f"The script ran; watching it failed: {''.join(last)}",
                "This is a bug; please report it with this line.",
            )

        if result is None:
            has_usage = (
                end.status == USAGE_STATUS
            )  # the script itself has said why it ended
            if has_usage and not request.arguments:
                _print_lines("Options of a script follow --: … -- --epochs 2")
            elif not (end.fault or has_usage):
                _print_lines(_explain_missing_trace(spec, request, end))

            raise ScriptStatus(end.status or ExitCode.BAD_INPUT)

        with suppress(*([LimitError] if end.status else [])):
            place.conclude(result, spec, folder, outputs)

    is_over = result.is_over_limit and not end.status
    raise ScriptStatus(ExitCode.OVER_LIMIT if is_over else end.status)


def _check_syntax(spec: TargetSpec) -> None:
    """Refuse a file that Python cannot compile, in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(spec.source.read_bytes(), spec.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        message = f"{spec.text}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}."
        raise InputError(message, "Correct this line.") from None


def _explain_missing_trace(
    spec: TargetSpec,
    request: WatchRequest,
    end: ScriptEnd,
) -> str:
    """Return the reason why no step was traced, and the fix."""
    ended = f"{spec.text} ended with exit code {end.status}"
    if end.status == ExitCode.INTERRUPTED:
        return f"{spec.text} was interrupted before any step was traced."

    if end.unread:
        return f"{ended}; its trace cannot be read: {end.unread}"

    if end.status and (end.note is not None or not end.has_tensorflow):
        return f"{ended} before any step was traced."

    if not end.has_tensorflow:
        return (
            f"{ended} and never imported TensorFlow: no step was traced. If it runs "
            "TensorFlow in another process, name the step itself: file.py:name."
        )

    if end.note is None:
        python = " ".join(("python", spec.text, *request.arguments))
        return (
            f"{ended} before any step was traced, without a Python error (kill -9, a crash "
            f"in C++, exec). If it ran out of memory: {python} 2> log, then analyze oom log."
        )

    return (
        f"{ended}, and TensorFlow allocated nothing. If it only defines a model or a step, "
        f"name that: {spec.text}:name."
    )


def _print_lines(*lines: str) -> None:
    for line in lines:
        print(f"analyze: {printable(line, 2000)}", file=sys.stderr)


_BLOCKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Bytes in use and their slope of the script whose run folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readings: deque[list[int]] = deque(maxlen=60)

    def render(self) -> RenderableType:
        """Return the view of the latest reading."""
        words = (self._folder / LIVE_FILE).read_text("ascii").split()
        if len(words) == 4:  # the file is not being written
            self._readings.append([*map(int, words)])

        if not self._readings:
            return Text("Waiting for the first step.", "dim")

        earlier = self._readings[0]
        (step, in_use, peak, resident) = self._readings[-1]
        slope = (in_use - earlier[1]) // max(step - earlier[0], 1)

        highest = len(_BLOCKS) - 1
        levels = (one[1] * highest // max(peak, 1) for one in self._readings)
        figures = (
            f"step {step}: {format_bytes(in_use)} in TensorFlow's pool, peak "
            f"{format_bytes(peak)}, "
            f"process {format_bytes(resident)}, slope {signed_bytes(slope)} a step"
        )

        curve = Text("".join(_BLOCKS[level] for level in levels), "cyan")

        return Group(curve, Text(figures, "bold"))


@contextmanager
def show_live(
    folder: Path,
    output: IO[bytes],
    console: Console | None = None,
) -> Iterator[None]:
    """Show a running script below its own output."""
    console = console or Console(stderr=True)

    def copy() -> None:
        with output:
            for line in output:
                console.print(Text(line.decode("utf-8", "replace").rstrip("\n")))

    render = LiveView(folder).render
    with Live(
        get_renderable=render,
        console=console,
        refresh_per_second=2,
        transient=True,
    ):
        copier = threading.Thread(target=copy, daemon=True)
        copier.start()
        yield
        copier.join(1.0)  # the script's own children may hold the pipe
