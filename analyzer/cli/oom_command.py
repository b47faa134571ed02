"""``analyze oom LOG``: explain the out-of-memory failure in a log."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.cli import shared_options as options
from analyzer.cli.outputs import (
    check_not_input,
    check_paths,
    open_in_browser,
    print_answer,
    write_all,
)
from analyzer.cli.stdout import DASH, Progress, progress_bar
from analyzer.model.errors import InputError
from analyzer.oom import ModelTensor, OomReport, find_card_id, read_oom_log

if TYPE_CHECKING:
    from analyzer.report.result import Result


def oom(
    log: Annotated[
        str,
        typer.Argument(
            help="A log: plain text, .gz, a notebook with output, or a run folder; - is standard input.",
            metavar="LOG",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        options.option(
            "Match sizes to the tensors of this model, estimated as in `analyze estimate TARGET`.",
            metavar="TARGET",
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        options.option("Match sizes to the tensors of this run folder, traced or estimated."),
    ] = None,
    batch_size: options.BatchSize = None,
    json: options.JsonFile = None,
    html: options.HtmlFile = None,
    open_page: options.OpenPage = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Explain an out-of-memory log: the request, the cause, and the fixes that its numbers support."""
    if log != "-":
        check_not_input((json, html), Path(log))
    check_paths(json, html, force=force)
    _check_model_options(target, trace, batch_size)
    report = _match_tensors(_read_log(log), target, trace, batch_size)
    if not write_all((json, report.to_json), (html, report.to_html)):
        from analyzer.oom.log_sections import build_sections

        print_answer(build_sections(report.document), quiet=quiet)
    if open_page:
        open_in_browser(None if html == DASH else html, report.to_html)


def _read_log(log: str) -> OomReport:
    """Read a file, the log of a run folder, or standard input.

    Raises:
        InputError: it cannot be read.
    """
    if log == "-":
        return read_oom_log(sys.stdin.buffer, "standard input")
    path = Path(log)
    try:
        if path.is_dir():
            path = path / LOG_FILE
            if not path.is_file():
                raise InputError(f"{log} is a folder.", hint="Name the log file itself.")
        with path.open("rb") as stream, progress_bar() as report:
            size = max(os.fstat(stream.fileno()).st_size, 1)
            return read_oom_log(cast(BinaryIO, _CountedStream(stream, size, report)), str(path))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name a log file, or - for stdin.",
        ) from None


@dataclass(frozen=True, slots=True)
class _CountedStream:
    """A file that reports the share of it that was read."""

    stream: BinaryIO
    size_bytes: int
    report: Progress

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        self.report("reading the log", min(self.stream.tell() / self.size_bytes, 1.0))
        return self.stream.read(size)


def _check_model_options(target: str, trace: Path | None, batch_size: int | None) -> None:
    """Refuse options that contradict each other.

    Raises:
        InputError: two options exclude each other, or the trace does not exist.
    """
    if target and trace is not None:
        raise InputError("--target and --trace exclude each other.", hint="Leave one out.")
    if batch_size is not None and not target:
        raise InputError("--batch-size needs --target.", hint="Name the model: --target TARGET.")
    if trace is not None and not trace.exists():
        raise InputError(f"{trace} does not exist.", hint="Name a run folder or an .xplane.pb.")


def _match_tensors(
    report: OomReport, target: str, trace: Path | None, batch_size: int | None
) -> OomReport:
    """Add the names of a model's tensors to the sizes in the log."""
    if trace is not None:
        from analyzer.session.public_calls import open_trace

        return report.with_model(_model_tensors(open_trace(trace)), str(trace))
    if not target:
        return report
    from analyzer.session.public_calls import estimate

    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        cards = (one.card.name or "" for one in report.document.failures if one.card is not None)
        card = next(filter(None, map(find_card_id, cards)), "")
        arguments: dict[str, Any] = {"gpu": card} if card else {}
        if batch_size is not None:
            arguments["batch_size"] = batch_size
        failures = report.document.failures
        if failures and not failures[0].compiled and failures[0].op != "StatefulPartitionedCall":
            arguments["jit"] = False
        result = estimate(target, out=Path(folder) / "model", **arguments)
        return report.with_model(list(_model_tensors(result)), target, is_target=True)


def _model_tensors(result: Result) -> Iterator[ModelTensor]:
    """Yield the named tensors of a result, variables included."""
    columns = ["variable", "tensor", "op", "category", "requested_bytes"]
    rows = result.analysis.rows[columns].drop_duplicates()
    for variable, tensor, op, category, size in rows.itertuples(index=False, name=None):
        name = str(variable or tensor or op or "")
        if name:
            yield ModelTensor(name, str(category), str(op or ""), int(size))
