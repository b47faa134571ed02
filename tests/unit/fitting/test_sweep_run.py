"""A sweep continues, states its failures, and refuses a wrong configuration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import ROOT

from analyzer.fitting import sweep_run
from analyzer.fitting.sweep_run import build_sweep_document, read_requests, run_sweep
from analyzer.model.errors import InputError
from analyzer.session.work_engine import WorkEngine

MODEL = f"{ROOT / 'traces' / 'models.py'}:cnn"


def config(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_a_sweep_that_was_interrupted_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'models = ["{MODEL}"]\nbatches = [1, 2, 4, 32]\ncards = ["t4"]\n'
    requests = read_requests(config(tmp_path, text), tmp_path / "out")
    made: list[int] = []

    def answer(batch: int) -> Any:
        peak = SimpleNamespace(requested_bytes=batch, allocated_bytes=batch + 24)
        verdict = SimpleNamespace(need_bytes=batch, limit_bytes=20)
        report = SimpleNamespace(peak=peak, verdict=verdict, fits=batch < 20)
        return SimpleNamespace(report=report)

    def estimate(spec: Any, options: Any, out: Path) -> Any:
        made.append(options.batch_size)
        if options.batch_size == 4 and len(made) < 4:
            raise KeyboardInterrupt
        if options.batch_size == 1:
            raise InputError("no memory")
        out.mkdir(parents=True)
        (out / "batch").write_text(str(options.batch_size))
        return answer(options.batch_size)

    def reopen(folder: Path) -> Any:
        return answer(int((folder / "batch").read_text()))

    monkeypatch.setattr(sweep_run, "estimate_target", estimate)
    monkeypatch.setattr(sweep_run, "open_finished", reopen)

    def run() -> Any:
        return run_sweep(requests, WorkEngine(), lambda stage, share: None)

    with pytest.raises(KeyboardInterrupt):
        run()
    whole = run()
    assert made == [1, 2, 4, 1, 4, 32]
    found = [cell.allocated_bytes for cell in whole.cells]
    assert found == [None, 26, 28, 56]
    document = build_sweep_document(whole)
    assert document.headline == "2 of 4 cells fit their card."
    assert document.next_command == f"analyze fit {MODEL} --gpu t4"
    assert "no memory" in str(document.sections)


def test_another_option_is_another_cell(tmp_path: Path) -> None:
    folders = set()
    for more in ("", 'optimizer = "sgd"', "jit = true"):
        path = config(tmp_path, f'models = ["{MODEL}"]\n{more}\n')
        ((cell, _),) = read_requests(path, tmp_path)
        folders.add(cell.folder)

    assert len(folders) == 3


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
def test_a_wrong_configuration_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_requests(config(tmp_path, text), tmp_path)
