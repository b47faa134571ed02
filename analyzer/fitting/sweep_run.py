"""A sweep: estimate a target for every combination of models, cards and batches, and show all.

A configuration is a TOML file with the fields of ``SweepConfig``; docs/fit.md has an example. A cell is
the folder of an ordinary estimate, so an interrupted sweep opens those that exist.
"""

import hashlib
import re
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, structs

from analyzer.capture.process.launch import Progress
from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind
from analyzer.model.contract.fields import Name, Text
from analyzer.model.contract.report_file import SweepCell, SweepFile
from analyzer.model.errors import AnalyzerError, ExitCode, InputError
from analyzer.model.version import __version__
from analyzer.report.render.sections import (
    COLUMNS,
    Cell,
    Document,
    Paragraph,
    Section,
    Table,
    Tone,
)
from analyzer.session.opening import open_finished
from analyzer.session.target_results import estimate_target
from analyzer.session.work_engine import WorkEngine

_CPU: Final = "cpu"
_OTHER: Final = re.compile(r"[^\w.-]+")  # characters that a folder's name avoids
_DIED: Final = "The estimate's process died, probably out of memory. Use fewer workers."
_WORDS: Final[dict[object, tuple[str, Tone]]] = {
    True: ("yes", "good"),
    False: ("no", "bad"),
    "may not": ("may not", "warning"),
    "failed": ("failed", "warning"),
    None: ("", "plain"),
}

_Batch = Annotated[int, Meta(ge=1, le=1 << 32)]
_Request = tuple[SweepCell, CaptureOptions]


class SweepConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The lists of a sweep, and options of every step; its cells are all combinations."""

    # Targets of ``analyze estimate``
    models: Annotated[tuple[Text, ...], Meta(min_length=1)]
    batches: Annotated[tuple[_Batch, ...], Meta(min_length=1)] = (32,)
    # Of the catalogue, or ``cpu``
    cards: Annotated[tuple[Name, ...], Meta(min_length=1)] = (_CPU,)
    mode: Name = ""
    optimizer: Name = ""
    dtype_policy: Name = ""
    jit: bool | None = None


def read_requests(path: Path, out: Path) -> list[_Request]:
    """Return the cells of a TOML file, without figures, and the options of their captures."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=SweepConfig)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        hint = 'Required: models = ["keras:NAME"]; optional: batches, cards.'
        raise InputError(f"{path}: {reason}.", hint=hint) from None

    requests = []
    for model, card, batch in product(config.models, config.cards, config.batches):
        if parse_target(model).kind is TargetKind.TRACE:
            hint = "Name the model or the step itself."
            raise InputError(f"{path}: {model} has one batch size.", hint=hint)

        gpu = "" if card.lower() == _CPU else find_gpu(card).id
        options = CaptureOptions(
            batch_size=batch,
            gpu=gpu,
            device="gpu" if gpu else "cpu",
            mode=config.mode,
            optimizer=config.optimizer,
            dtype_policy=config.dtype_policy,
            jit=config.jit,
        )
        folder = out / _name_folder(model, options)
        cell = SweepCell(
            target=model, batch_size=batch, card=gpu or _CPU, folder=str(folder)
        )
        requests.append((cell, options))

    return requests


def _name_folder(model: str, options: CaptureOptions) -> str:
    """Return the name of a cell's folder, which changes with the options and the model's file."""
    digest = hashlib.sha256(f"{options} {__version__}".encode())

    source = parse_target(model).source
    if source.is_file():
        digest.update(source.read_bytes())

    return f"{_OTHER.sub('-', model)}-{options.batch_size}-{digest.hexdigest()[:8]}"


def run_sweep(
    requests: Sequence[_Request], engine: WorkEngine, progress: Progress
) -> SweepFile:
    """Estimate the cells that do not exist, and return all."""
    cells = dict(enumerate(cell for cell, _ in requests))

    for done, (place, made) in enumerate(engine.run(estimate_cell, requests), 1):
        cells[place] = made or structs.replace(cells[place], failed=_DIED)
        stage = f"estimating, {done} of {len(cells)} cells"
        progress(stage, done / len(cells))

    last = cells[len(cells) - 1]  # the next command finds its largest batch
    card = [] if last.card == _CPU else ["--gpu", last.card]
    command = shlex.join(["analyze", "fit", last.target, *card])

    return SweepFile(cells=tuple(cells.values()), next_command=command)


def estimate_cell(request: _Request) -> SweepCell:
    """Return the cell with its figures, or with the reason why there are none."""
    cell, options = request
    folder = Path(cell.folder)

    try:
        if folder.is_dir():
            report = open_finished(folder).report
        else:
            spec = parse_target(cell.target)
            report = estimate_target(spec, options, folder).report
    except AnalyzerError as error:
        if error.exit_code is ExitCode.BUG:
            raise

        return structs.replace(cell, failed=str(error))

    verdict = report.verdict
    return structs.replace(
        cell,
        requested_bytes=report.peak.requested_bytes,
        allocated_bytes=report.peak.allocated_bytes,
        need_bytes=None if verdict is None else verdict.need_bytes,
        limit_bytes=None if verdict is None else verdict.limit_bytes,
        fits=report.fits,
    )


def build_sweep_document(sweep: SweepFile) -> Document:
    """Return a sweep as a document."""
    headline = f"{len(sweep.cells)} estimates."
    if any(cell.limit_bytes for cell in sweep.cells):
        fitting = sum(cell.fits is True for cell in sweep.cells)
        headline = f"{fitting} of {len(sweep.cells)} cells fit their card."

    most = max((cell.allocated_bytes or 0 for cell in sweep.cells), default=0) or 1
    rows = []

    for cell in sweep.cells:
        word, tone = _WORDS["failed" if cell.failed else cell.fits]
        share = (cell.allocated_bytes or 0) / most
        rows.append(
            (
                *(cell.target, cell.card, cell.batch_size, Cell(word, tone)),
                *(cell.need_bytes, cell.limit_bytes, share),
                *(cell.requested_bytes, cell.allocated_bytes),
            )
        )

    reasons = dict.fromkeys(cell.failed for cell in sweep.cells if cell.failed)
    blocks = [Paragraph(reason, "warning", "! ") for reason in reasons]
    table = Table(COLUMNS["sweep"], tuple(rows))

    return Document(
        "",
        headline,
        badge="estimated",
        sections=(Section("Peak of the steady step", (table, *blocks)),),
        next_command=sweep.next_command,
    )
