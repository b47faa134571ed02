"""Machine code is stored between processes; a damaged or missing copy, or no Numba, does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.model.user_cache import create_cache_folder
from analyzer.simulate.allocator.bfc import compiled_run

_PROGRAM = """
import numpy as np
from analyzer.simulate.allocator.bfc.bfc_allocator import BfcAllocator
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions
from analyzer.simulate.allocator.bfc import compiled_run
allocator = BfcAllocator(BfcOptions.cpu(), 2, is_compiled=True)
assert allocator.feed(np.array([0, 1, 0]), np.array([1000, 5000, 0])) == 3
print(allocator.in_use_bytes, compiled_run.load_run() is not None)
"""


def _run(cache: Path, before: str = "") -> list[str]:
    environment = {**os.environ, "TF_MEMORY_ANALYZER_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", before + _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "is_damaged", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stored", "damaged"]
)
def test_stored_and_damaged_code_gives_the_same(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _run(tmp_path) == ["5120", "True"]
    (code,) = tmp_path.glob("replay-*/**/*.nbc")
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path))
    assert compiled_run.has_stored_code()
    if is_damaged:
        code.write_bytes(b"")
    assert _run(tmp_path) == ["5120", "True"]


def test_without_numba_the_same_code_runs_as_plain_python(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['numba'] = None\n"
    assert _run(tmp_path, hide) == ["5120", "False"]


def test_nothing_is_stored_if_the_cache_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", "off")
    assert compiled_run.code_folder() is None


def test_a_folder_that_cannot_be_made_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path / "file" / "cache"))
    assert compiled_run.code_folder() is None


def test_no_cache_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path / "cache"))
    assert compiled_run.code_folder() is None
    assert not (tmp_path / "cache").exists()
    assert not compiled_run.has_stored_code()


def test_an_estimate_begins_the_cache_and_then_shorter_sequences_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    monkeypatch.setattr(compiled_run, "is_loaded", lambda: False)
    monkeypatch.setattr(compiled_run, "load_run", lambda: loads.append(True))
    root = tmp_path / "home" / "cache"
    count = compiled_run.STORE_FROM_OPERATIONS
    for value, expected in (("off", 0), (str(root), 1)):
        monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", value)
        create_cache_folder()
        compiled_run.prepare(count // 10)
        assert not loads
        compiled_run.prepare(count)
        assert len(loads) == expected
    assert [path.name for path in root.parent.iterdir()] == ["cache"]
    assert not list(root.iterdir())
