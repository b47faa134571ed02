"""``analyze oom LOG``: explain the out-of-memory failure in a log."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace as replace_fields

from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.cli.outputs import PageOutputs
from analyzer.cli.shared_options import BatchSize, argument, option, refuse_options
from analyzer.cli.stdout import progress_bar
from analyzer.model.contract.oom_file import Reproduction
from analyzer.model.errors import InputError
from analyzer.oom import OomReport, read_oom_log
from analyzer.oom.advice import find_fit_options, write_fit_command
from analyzer.oom.failures import LoggedFailure
from analyzer.report.output_files import write_text
from analyzer.report.render.sections import Document


def oom(
    log: Annotated[
        str,
        argument(
            "A log: plain text, .gz, a notebook with output, or a run folder; - is standard input.",
            metavar="LOG",
        ),
    ],
    target: Annotated[
        str,
        option(
            "The model of the log, for the next command and for --reproduce.",
            metavar="TARGET",
        ),
    ] = "",
    batch_size: BatchSize = None,
    reproduce: Annotated[
        bool,
        option(
            "Also run the step of --target on a simulated card with the card and the "
            "limit in the log: whether the same op fails, and which changes let it run.",
            "--reproduce",
        ),
    ] = False,
    *,
    outputs: PageOutputs,
) -> None:
    """Explain an out-of-memory log: the request, the cause, and the fixes that its numbers support."""
    outputs.check(*([] if log == "-" else [Path(log)]))

    if not target:
        refuse_options(
            "needs --target",
            "Name the model: --target TARGET.",
            reproduce=reproduce,
        )

    if not reproduce:
        refuse_options(
            "needs --target TARGET --reproduce",
            "Add them.",
            batch_size=batch_size,
        )

    explained = _read_log(log)
    document = explained.report

    if target and document.next_command is not None:
        command = document.next_command.replace("TARGET", shlex.quote(target))
        document = replace_fields(document, next_command=command)

    if reproduce:
        card = _find_card(explained, target)
        found = _reproduce(explained, target, batch_size, card, outputs)
        document = replace_fields(document, reproduction=found)

    _show(replace(explained, report=document), outputs, batch_size)


def _show(explained: OomReport, outputs: PageOutputs, batch_size: int | None) -> None:
    """Write and print the explanation of a log."""
    from analyzer.oom.log_sections import build_sections
    from analyzer.report.render.page_shell import to_page

    def build(failures: Sequence[LoggedFailure] = ()) -> Document:
        page = build_sections(explained.report, failures)
        if explained.report.reproduction is None:
            return page

        from analyzer.fitting.reproduction import append_reproduction

        return append_reproduction(page, explained.report.reproduction, batch_size)

    outputs.show(
        explained.to_json,
        lambda path: write_text(path, to_page(build(explained.failures))),
        build,
    )


def _read_log(log: str) -> OomReport:
    """Read a file, the log of a run folder, or standard input."""
    if log == "-":
        return read_oom_log(sys.stdin.buffer, "standard input")

    path = Path(log)
    try:
        if path.is_dir():
            path = path / LOG_FILE
            if not path.is_file():
                raise InputError(
                    f"{log} is a folder.",
                    "Name the log file itself.",
                )

        with path.open("rb") as stream:
            if ".xplane.pb" in path.name:
                raise InputError(
                    f"{path} is a trace.",
                    f"analyze trace {shlex.quote(log)} explains it.",
                )

            return read_oom_log(stream, str(path))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            "Name a log file, or - for stdin.",
        ) from None


def _find_card(explained: OomReport, target: str) -> tuple[str, int | None]:
    """Return the failure's card and limit in the log; InputError if the log does not name the card."""
    command = None

    for failure in explained.failures[:1]:
        found = find_fit_options(failure)
        if found is not None and found[0]:
            return found

        command = write_fit_command(failure)

    command = command or "analyze fit TARGET --gpu CARD"
    raise InputError(
        "--reproduce needs a failure of TensorFlow, and the name of its card in the log.",
        f"Name the card: {command.replace('TARGET', shlex.quote(target))}",
    )


def _reproduce(
    explained: OomReport,
    target: str,
    batch_size: int | None,
    card: tuple[str, int | None],
    outputs: PageOutputs,
) -> Reproduction:
    """Return the run of a target on the log's card, under the log's limit.

    Without a sign of XLA in the log, the step runs op by op.
    """
    from analyzer.capture.targets.target_spec import parse_target
    from analyzer.fitting.reproduction import reproduce
    from analyzer.model.contract.child_messages import CaptureOptions

    spec = parse_target(target)
    if spec.is_trace:
        raise InputError(f"{target} is a trace.", "Name a model: --target TARGET.")

    gpu, limit_bytes = card
    logged = explained.report.failures
    signs = {logged[0].component, logged[0].op} & {"XLA", "StatefulPartitionedCall"}
    chosen = CaptureOptions(
        device="gpu",
        gpu=gpu,
        batch_size=batch_size,
        jit=None if signs else False,
    )

    with progress_bar(outputs.progress):
        return reproduce(spec, chosen, limit_bytes, logged)
