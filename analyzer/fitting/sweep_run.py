"""A sweep: read its configuration, estimate the cells that do not exist, and show all.

A configuration is a TOML file with the fields of ``SweepConfig``; docs/fit.md has an example.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from analyzer.capture.process.launch import Progress, capture
from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu, memory_limit
from analyzer.explain.replay_settings import WhatIf
from analyzer.fitting.remedies import choose_plans
from analyzer.fitting.remedy_plans import plan_remedies
from analyzer.fitting.step_access import make_workplace
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind
from analyzer.model.contract.fields import Name, Text
from analyzer.model.contract.reading import decode_record
from analyzer.model.contract.report_file import (
    SWEEP_VERSION,
    Kind,
    SweepCell,
    SweepFile,
    SweepQuestion,
)
from analyzer.model.contract.report_json import encode_report
from analyzer.model.errors import AnalyzerError, ExitCode, InputError
from analyzer.model.units import parse_bytes
from analyzer.model.version import __version__
from analyzer.report.answer import versions_line
from analyzer.report.output_files import write_text
from analyzer.report.render.sections import (
    COLUMNS,
    Block,
    Cell,
    CellValue,
    Document,
    Paragraph,
    Section,
    Table,
    Tone,
)
from analyzer.report.untrusted import csv_cell
from analyzer.session.target_results import estimate_target
from analyzer.session.work_engine import WorkEngine
from analyzer.tracing.parse.logdir import RUN_FILE
from analyzer.tracing.parse.run_folder import read_run

CPU: Final = "cpu"
NONE: Final = "none"
SWEEP_JSON: Final = "sweep.json"
_MOST_CELLS: Final = 10_000
_SHARED_OPTIONS: Final = ("mode", "optimizer", "dtype_policy", "jit")

_Batch = Annotated[int, Meta(ge=1, le=1 << 32)]
_Names = Annotated[tuple[Name, ...], Meta(min_length=1)]


class SweepConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The lists of a sweep, and settings for every cell; its cells are all combinations."""

    # Targets of ``analyze estimate``
    models: Annotated[tuple[Text, ...], Meta(min_length=1)]
    batches: Annotated[tuple[_Batch, ...], Meta(min_length=1)] = (32,)
    cards: _Names = (CPU,)  # of the catalogue, or ``cpu``
    remedies: _Names = (NONE,)  # as ``analyze fit --what-if`` names them, or ``none``
    mode: Name = ""
    optimizer: Name = ""
    dtype_policy: Name = ""
    jit: bool | None = None
    # the allocator's limit, such as ``16GiB``; empty for each card's own
    limit: Name = ""


def read_questions(path: Path) -> tuple[SweepQuestion, ...]:
    """Return the questions of the cells of a TOML file, each once."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=SweepConfig)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}."
        raise InputError(reason, hint="Name a TOML file.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: {str(error).splitlines()[0]}.",
            hint='Required: models = ["keras:NAME"]; optional: batches, cards, remedies.',
        ) from None

    for model in config.models:
        if parse_target(model).kind is TargetKind.TRACE:
            raise InputError(
                f"{path}: {model} is a trace or an estimate of one batch size.",
                hint="Name the model or the step itself.",
            )

    cards = [CPU if card.lower() == CPU else find_gpu(card).id for card in config.cards]
    limit = parse_bytes(config.limit) if config.limit else None
    shared = {name: getattr(config, name) for name in _SHARED_OPTIONS}

    asked = []
    cells = product(config.models, cards, config.remedies, config.batches)

    for model, card, remedy, batch in cells:
        question = SweepQuestion(
            target=model,
            batch_size=batch,
            card=card,
            remedy="" if remedy == NONE else remedy,
            limit_bytes=limit,
            **shared,
        )

        asked.append(question)

    if len(asked) > _MOST_CELLS:
        raise InputError(
            f"{path} has {len(asked):,} cells.",
            hint=f"Use at most {_MOST_CELLS:,}.",
        )

    return tuple(dict.fromkeys(asked))


_DIED: Final = (
    "The estimate's process died twice, probably out of memory. Use fewer workers."
)


def run_sweep(
    questions: Sequence[SweepQuestion],
    name: str,
    out: Path,
    *,
    engine: WorkEngine,
    progress: Progress,
) -> SweepFile:
    """Estimate the cells that ``out`` lacks, and return all; failed cells are not saved."""
    folder = out / "cells"
    try:
        if out.is_dir() and not folder.is_dir() and any(out.iterdir()):
            reason = f"{out} holds files that are not a sweep's."
            raise InputError(reason, hint="Name another --out.")

        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{out}: {error.strerror}.",
            hint="Name another --out.",
        ) from None

    files = [folder / f"{_key(question)}.json" for question in questions]
    cells: dict[int, SweepCell] = {}

    for place, (question, file) in enumerate(zip(questions, files, strict=True)):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            saved = decode_record(file.read_bytes(), SweepCell, SWEEP_VERSION)
            if saved.question == question:
                cells[place] = saved

    missing = [place for place in range(len(questions)) if place not in cells]

    def report() -> None:
        progress(
            f"estimating, {len(cells)} of {len(questions)} cells",
            len(cells) / len(questions),
        )

    report()

    for at, made in engine.run(estimate_cell, [questions[place] for place in missing]):
        place = missing[at]
        cell = cells[place] = made or SweepCell(question=questions[place], failed=_DIED)
        if not cell.failed:
            write_text(files[place], encode_report(cell))

        report()

    return SweepFile(
        name=name,
        cells=tuple(cells[place] for place in range(len(questions))),
        versions={"tf-memory-analyzer": __version__},
    )


def _key(question: SweepQuestion) -> str:
    """Return the name of a cell's file: a hash of the question, the model's file and the version."""
    digest = hashlib.sha256(msgspec.json.encode(question) + __version__.encode())
    source = Path(parse_target(question.target).source)
    if source.is_file():
        digest.update(source.read_bytes())

    return digest.hexdigest()[:24]


def estimate_cell(question: SweepQuestion) -> SweepCell:
    """Return the estimate for a cell, or the reason why there is none."""
    try:
        with make_workplace() as folder:
            return _estimate(question, folder)
    except AnalyzerError as error:
        if error.exit_code is ExitCode.BUG:
            raise

        return SweepCell(question=question, failed=str(error))


def _estimate(question: SweepQuestion, folder: Path) -> SweepCell:
    spec = parse_target(question.target)
    limit_bytes = question.limit_bytes

    card = "" if question.card == CPU else question.card
    if limit_bytes is not None and card:
        limit_bytes = min(limit_bytes, memory_limit(find_gpu(card)).bytes)

    options = CaptureOptions(
        **{name: getattr(question, name) for name in ("batch_size", *_SHARED_OPTIONS)},
        device="gpu" if card else "cpu",
        gpu=card,
        memory_limit_bytes=limit_bytes if card else None,
    )

    if question.remedy:  # a capture without it shows whether the step has it
        made = capture(
            spec,
            options,
            folder / "as-is",
            force=False,
            progress=lambda *_: None,
            kind="static",
        )

        plans = list(plan_remedies(options, read_run(made / RUN_FILE)))
        options = choose_plans(plans, [question.remedy])[0].options

    what_if = WhatIf(memory_limit_bytes=limit_bytes)
    report = estimate_target(spec, options, folder / "cell", what_if=what_if).report

    figures: dict[str, Any] = {
        name: getattr(report.verdict, name, None)
        for name in ("need_bytes", "limit_bytes", "margin_bytes")
    }

    figures |= {
        name: getattr(report.uncertainty, name, None)
        for name in ("low_bytes", "high_bytes")
    }

    return SweepCell(
        question=question,
        is_simulated=report.kind is Kind.SIMULATED_CARD,
        requested_bytes=report.peak.requested_bytes,
        allocated_bytes=report.peak.allocated_bytes,
        fits=report.fits,
        op=report.peak.op or "",
        **figures,
    )


_WORDS: Final[dict[str, tuple[str, Tone]]] = {
    "yes": ("fit", "good"),
    "may not": ("may not fit", "warning"),
    "no": ("do not fit", "bad"),
    "failed": ("have no estimate", "warning"),
    "": ("without a limit", "plain"),
}
"""Phrase and tone of each answer of a cell, in the order of the summary."""

_ASKED: Final = ("target", "card", "remedy", "batch_size")
_FIGURES: Final = (
    *("requested_bytes", "allocated_bytes", "low_bytes", "high_bytes"),
    *("need_bytes", "limit_bytes", "margin_bytes", "fits", "op", "failed"),
)
"""Columns of the CSV: fields of a cell's question, and of the cell."""


def build_sweep_document(sweep: SweepFile) -> Document:
    """Return a sweep as a document."""
    most = max((cell.allocated_bytes or 0 for cell in sweep.cells), default=0) or 1
    words = [_answer_of(cell) for cell in sweep.cells]

    counts = (
        f"{words.count(one)} {phrase}"
        for one, (phrase, _) in _WORDS.items()
        if one in words
    )

    reasons = dict.fromkeys(cell.failed for cell in sweep.cells if cell.failed)
    rows = tuple(_row_of(cell, most) for cell in sweep.cells)
    blocks: list[Block] = [Table(COLUMNS["sweep"], rows)]
    blocks += (Paragraph(reason, "warning", "! ") for reason in reasons)

    asked = sweep.cells[-1].question  # the next command finds its largest batch
    card = () if asked.card == CPU else ("--gpu", asked.card)

    return Document(
        title=sweep.name,
        headline=f"{sweep.name}: {', '.join((f'{len(words)} cells', *counts))}",
        badge="estimated",
        lead=(
            Paragraph("Each cell is an estimate of the steady step; no kernel ran."),
        ),
        sections=(Section("Peak of the steady step", tuple(blocks)),),
        footer=versions_line(sweep.versions),
        next_command=shlex.join(("analyze", "fit", asked.target, *card)),
    )


def _answer_of(cell: SweepCell) -> str:
    """Return the key in ``_WORDS`` of a cell's answer."""
    if cell.failed or cell.limit_bytes is None:
        return "failed" if cell.failed else ""

    return "yes" if cell.fits is True else "no" if cell.fits is False else "may not"


def sweep_to_csv(sweep: SweepFile) -> str:
    """Return the cells as CSV, sizes in bytes."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*_ASKED, *_FIGURES))

    for cell in sweep.cells:
        asked = [getattr(cell.question, name) for name in _ASKED]
        writer.writerow(
            map(csv_cell, (*asked, *(getattr(cell, name) for name in _FIGURES)))
        )

    return file.getvalue()


def _row_of(cell: SweepCell, most_bytes: int) -> tuple[CellValue, ...]:
    asked = cell.question
    word = _answer_of(cell)
    share = None if cell.allocated_bytes is None else cell.allocated_bytes / most_bytes

    return (
        *(asked.target, asked.card, asked.remedy or NONE, asked.batch_size),
        *(Cell(word, _WORDS[word][1]), cell.need_bytes, cell.limit_bytes, share),
        *(cell.requested_bytes, cell.allocated_bytes),
    )
