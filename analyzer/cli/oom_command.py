"""``analyze oom LOG``: what a log's out-of-memory failure says, and what its numbers support."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.cards import find_gpu
from analyzer.cli.outputs import check_not_read, check_paths, open_in_browser, write_all
from analyzer.cli.shared_options import BatchSize
from analyzer.cli.stdout import DASH, printing, terminal
from analyzer.model.errors import InputError
from analyzer.oom import ModelTensor, OomReport, read_oom_log

if TYPE_CHECKING:
    from analyzer.report.result import Result


def oom(
    log: Annotated[
        str,
        typer.Argument(
            help="A log: plain, .gz, a notebook with its output, a run folder; - for standard input.",
            metavar="LOG",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help="Name the sizes by this model's tensors: estimated, as `analyze estimate TARGET` does.",
            metavar="TARGET",
        ),
    ] = "",
    trace: Annotated[
        Path | None,
        typer.Option(help="Name the sizes by the tensors of this run folder, traced or estimated."),
    ] = None,
    batch_size: BatchSize = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write the account as JSON; - for stdout, here and below."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with the allocator's regions drawn.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no tables.")] = False,
) -> None:
    """Explain an out-of-memory log: what was asked, what was in the way, what the numbers support."""
    check_paths(json, html)
    if log != "-":
        check_not_read((json, html), Path(log))
    _check_model(target, trace, batch_size)
    found = _with_model(_read(log), target, trace, batch_size)
    writers = ((json, found.to_json), (html, found.to_html))
    is_taken = write_all((path, write) for path, write in writers if path is not None)
    if not is_taken and not quiet:
        _print(found)
    if open_page:
        open_in_browser(None if html == DASH else html, found.to_html)


def _read(log: str) -> OomReport:
    if log == "-":
        return read_oom_log(sys.stdin.buffer, "standard input")
    path = Path(log)
    try:
        if path.is_dir():
            path = path / LOG_FILE
            if not path.is_file():
                raise InputError(f"{log} is a folder.", hint="Name the log file itself.")
        with path.open("rb") as stream:
            return read_oom_log(stream, str(path))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Name a log file, or - for stdin.",
        ) from None


def _check_model(target: str, trace: Path | None, batch_size: int | None) -> None:
    """Refuse options that contradict each other, before anything is read.

    Raises:
        InputError: they do.
    """
    if target and trace is not None:
        raise InputError("--target and --trace exclude each other.", hint="Leave one out.")
    if batch_size is not None and not target:
        raise InputError("--batch-size is of --target.", hint="Name the model: --target TARGET.")
    if trace is not None and not trace.exists():
        raise InputError(f"There is no {trace}.", hint="Name a run folder or an .xplane.pb.")


def _with_model(
    found: OomReport, target: str, trace: Path | None, batch_size: int | None
) -> OomReport:
    """Return the report with its sizes named by a model's tensors, where one was given."""
    if trace is not None:
        from analyzer.session.public_calls import open_trace

        return found.named(_tensors(open_trace(trace)), str(trace))
    if not target:
        return found
    from analyzer.session.public_calls import estimate

    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        options: dict[str, Any] = {"gpu": _gpu_of(found)} if _gpu_of(found) else {}
        if batch_size is not None:
            options["batch_size"] = batch_size
        failures = found.document.failures
        if failures and not failures[0].compiled and failures[0].op != "StatefulPartitionedCall":
            options["jit"] = False
        result = estimate(target, out=Path(folder) / "model", **options)
        return found.named(list(_tensors(result)), target)


def _gpu_of(found: OomReport) -> str:
    """Return the catalogue's name of the card that the log names; empty for the host and none."""
    for failure in found.document.failures:
        card = failure.card
        if card is not None and card.name and card.total_bytes is not None:
            with contextlib.suppress(InputError):
                return find_gpu(card.name).id
    return ""


def _tensors(result: Result) -> Iterator[ModelTensor]:
    """Yield the tensors of a result: its variables and whatever its step asks for."""
    rows = result.analysis.rows
    columns = ["variable", "tensor", "op", "layer", "category", "requested_bytes"]
    for variable, tensor, op, layer, category, size in (
        rows[columns].drop_duplicates().itertuples(index=False, name=None)
    ):
        name = str(variable or tensor or op or "")
        if name:
            yield ModelTensor(name, str(layer or ""), str(category), str(op or ""), int(size))


def _print(found: OomReport) -> None:
    from analyzer.oom.telling import print_account

    with printing():
        print_account(found.plain, terminal())
