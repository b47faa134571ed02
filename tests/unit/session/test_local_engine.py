"""Processes of this machine: nothing that they made outlives them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from analyzer.session.engines.local_engine import run_locally


@pytest.mark.parametrize("is_ended_early", [True, False])
def test_temporary_folders_of_the_processes_go(
    is_ended_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = run_locally(tempfile.mkdtemp, ["one", "two", "three"], workers=1)
    _, made = next(results)
    assert made is not None
    assert tmp_path in Path(made).parents
    if is_ended_early:
        results.close()  # type: ignore[attr-defined]
    else:
        assert len(list(results)) == 2
    assert list(tmp_path.iterdir()) == []
