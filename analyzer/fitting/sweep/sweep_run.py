"""A sweep whole: what is done already is read, the rest is made, each finished cell is a file."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from analyzer.capture.targets.target_spec import parse_target
from analyzer.fitting.sweep.sweep_cell import sweep_cell
from analyzer.model.contract.reading import decode_record
from analyzer.model.contract.report.sweep_file import (
    SWEEP_VERSION,
    SweepCell,
    SweepFile,
    SweepQuestion,
)
from analyzer.model.contract.report.writing import encode_report
from analyzer.model.errors import InputError
from analyzer.model.version import __version__
from analyzer.report.output_files import write_text
from analyzer.session.engines.work import WorkEngine

CELLS: Final = "cells"
SWEEP_JSON: Final = "sweep.json"

_DIED: Final = "The process that made it died, each time; it may be short of memory."


def run_sweep(
    questions: Sequence[SweepQuestion],
    name: str,
    out: Path,
    *,
    engine: WorkEngine,
    progress: Callable[[str, float], None],
) -> SweepFile:
    """Make the cells that ``out`` does not hold yet, and return all.

    A cell that failed is tried again by the next run; one whose model was changed since is another.

    Args:
        questions: What the cells ask.
        name: Of the sweep.
        out: Its folder; made where it is not there.
        engine: Where cells are made.
        progress: Called with the stage and the share done, 0 to 1.

    Raises:
        InputError: the folder holds something else, or no scheduler answers.
    """
    folder = _folder(out)
    files = [folder / f"{_key(question)}.json" for question in questions]
    cells: dict[int, SweepCell] = {}
    for place, (question, file) in enumerate(zip(questions, files, strict=True)):
        kept = _kept(file)
        if kept is not None and kept.question == question:
            cells[place] = kept
    missing = [place for place in range(len(questions)) if place not in cells]

    def told() -> None:
        progress(f"estimating, {len(cells)} of {len(questions)} cells", len(cells) / len(questions))

    told()
    for at, made in engine.run(sweep_cell, [questions[place] for place in missing]):
        place = missing[at]
        cell = made or SweepCell(question=questions[place], failed=_DIED)
        cells[place] = cell
        if not cell.failed:
            write_text(files[place], encode_report(cell))
        told()
    return SweepFile(
        name=name,
        cells=tuple(cells[place] for place in range(len(questions))),
        versions={"tf-memory-analyzer": __version__},
    )


def _folder(out: Path) -> Path:
    """Return the folder of the cells, made.

    Raises:
        InputError: ``out`` is a file, or a folder that no sweep made.
    """
    folder = out / CELLS
    try:
        if out.is_dir() and not folder.is_dir() and any(out.iterdir()):
            raise InputError(f"{out} holds something that is no sweep.", hint="Name another --out.")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}.", hint="Name another --out.") from None
    return folder


def _key(question: SweepQuestion) -> str:
    """Return the name of a cell's file: what is asked, of which source, by which version."""
    digest = hashlib.sha256(msgspec.json.encode(question) + __version__.encode())
    source = Path(parse_target(question.target).source)
    if source.is_file():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def _kept(file: Path) -> SweepCell | None:
    """Return the cell in a file; None where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return decode_record(file.read_bytes(), SweepCell, SWEEP_VERSION)
    return None
