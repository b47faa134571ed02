"""``analyze oom LOG``: explain the out-of-memory failure in a log."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.capture.process.run_folders import LOG_FILE
from analyzer.cli import shared_options as options
from analyzer.cli.outputs import PageOutputs
from analyzer.model.errors import InputError
from analyzer.oom import ModelTensor, OomReport, find_card_id, read_oom_log

if TYPE_CHECKING:
    from analyzer.report.result import Result


def oom(
    log: str = options.argument(
        help="A log: plain text, .gz, a notebook with output, or a run folder; - is standard input.",
        metavar="LOG",
    ),
    target: str = options.option(
        "Match sizes to the tensors of this model, estimated as in `analyze estimate TARGET`.",
        default="",
        metavar="TARGET",
    ),
    trace: Path | None = options.option(
        "Match sizes to the tensors of this run folder, traced or estimated."
    ),
    batch_size: int | None = options.BATCH_SIZE,
    *,
    outputs: PageOutputs,
) -> None:
    """Explain an out-of-memory log: the request, the cause, and the fixes that its numbers support."""
    outputs.check(*([] if log == "-" else [Path(log)]))
    if target:
        options.refuse_options("and --target exclude each other", "Leave one out.", trace=trace)
    else:
        hint = "Name the model: --target TARGET."
        options.refuse_options("needs --target", hint, batch_size=batch_size)
    if trace is not None and not trace.exists():
        raise InputError(f"{trace} does not exist.", hint="Name a run folder or an .xplane.pb.")
    report = _read_log(log)
    if trace is not None:
        from analyzer.session.public_calls import open_trace

        report = report.with_model(_model_tensors(open_trace(trace)), str(trace))
    elif target:
        tensors = _estimate_tensors(report, target, batch_size)
        report = report.with_model(tensors, target, is_target=True)

    from analyzer.oom.log_sections import build_sections

    outputs.show(report.to_json, report.to_html, lambda: build_sections(report.document))


def _read_log(log: str) -> OomReport:
    """Read a file, the log of a run folder, or standard input."""
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


def _estimate_tensors(report: OomReport, target: str, batch_size: int | None) -> list[ModelTensor]:
    """Estimate a target on the log's card, compiled as the log shows it; return its tensors."""
    from analyzer.session.public_calls import estimate

    failures = report.document.failures
    cards = (find_card_id(one.card.name or "") for one in failures if one.card is not None)
    given: dict[str, Any] = {"gpu": next(filter(None, cards), ""), "batch_size": batch_size}
    is_op_by_op = failures and not failures[0].compiled
    if is_op_by_op and failures[0].op != "StatefulPartitionedCall":
        given["jit"] = False
    with tempfile.TemporaryDirectory(prefix="analyze-") as folder:
        return list(_model_tensors(estimate(target, out=Path(folder) / "model", **given)))


def _model_tensors(result: Result) -> Iterator[ModelTensor]:
    """Yield the named tensors of a result, variables included."""
    columns = ["variable", "tensor", "op", "category", "requested_bytes"]
    rows = result.analysis.rows[columns].drop_duplicates()
    for variable, tensor, op, category, size in rows.itertuples(index=False, name=None):
        name = str(variable or tensor or op or "")
        if name:
            yield ModelTensor(name, str(category), str(op or ""), int(size))
