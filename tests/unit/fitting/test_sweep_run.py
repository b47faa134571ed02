"""A sweep goes on where it was, tells what failed, and shows the same in every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ROOT

from analyzer.fitting import sweep_run
from analyzer.fitting.sweep_run import (
    build_sweep_document,
    read_questions,
)
from analyzer.model.contract.report_file import (
    SweepCell,
    SweepFile,
    SweepQuestion,
)
from analyzer.model.errors import InputError
from analyzer.session.work_engine import WorkEngine

MODEL = f"{ROOT / 'traces' / 'models.py'}:cnn"


def config(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def made_of(question: SweepQuestion) -> SweepCell:
    size = 1000 * question.batch_size
    return SweepCell(
        question=question,
        requested_bytes=size,
        allocated_bytes=size + 24,
        limit_bytes=20_000,
        fits=size < 20_000,
    )


def run(
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    make: Callable[[SweepQuestion], SweepCell],
) -> SweepFile:
    monkeypatch.setattr(sweep_run, "estimate_cell", make)
    return sweep_run.run_sweep(
        read_questions(path),
        "config",
        path.with_suffix(""),
        engine=WorkEngine(),
        progress=lambda stage, share: None,
    )


def test_a_sweep_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a sweep of four cells that ends in its third, and of which one fails
    path = config(
        tmp_path, f'models = ["{MODEL}"]\nbatches = [1, 2, 4, 32]\ncards = ["t4"]\n'
    )
    asked: list[int] = []

    def dies(question: SweepQuestion) -> SweepCell:
        asked.append(question.batch_size)
        if question.batch_size == 4:
            raise KeyboardInterrupt
        if question.batch_size == 1:
            return SweepCell(question=question, failed="no memory")
        return made_of(question)

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, path, dies)
    # WHEN it is started again
    again: list[int] = []
    whole = run(monkeypatch, path, lambda q: again.append(q.batch_size) or made_of(q))
    # THEN only what is missing or failed is made
    assert asked == [1, 2, 4]
    assert again == [1, 4, 32]
    assert [cell.allocated_bytes for cell in whole.cells] == [1024, 2024, 4024, 32_024]
    document = build_sweep_document(whole)
    assert document.headline == "config: 4 cells, 3 fit, 1 do not fit"
    assert document.next_command.startswith(f"analyze fit {MODEL}")
    # AND a damaged cell is made anew
    file = next((tmp_path / "config" / "cells").iterdir())
    file.write_text("{")
    again.clear()
    assert (
        run(monkeypatch, path, lambda q: again.append(q.batch_size) or made_of(q))
        == whole
    )
    assert len(again) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = []", "models"),
        ("batches = [1]", "missing required field `models`"),
        ('models = ["keras:X"]\nbatch = [1]', "unknown field `batch`"),
        ('models = ["keras:X"]\nbatches = [0]', ">= 1"),
        ('models = ["keras:X"]\ncards = ["gtx-nothing"]', "gtx-nothing"),
        ("models = [", "config.toml"),
    ],
)
def test_a_configuration_that_cannot_be(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_questions(config(tmp_path, text))


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, f'models = ["{MODEL}"]\n')
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="not a sweep"):
        run(monkeypatch, path, made_of)
