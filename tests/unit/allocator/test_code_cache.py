"""The compiled allocator's machine code is kept between processes, and a damaged copy does no harm."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import numpy as np
from analyzer.simulate.allocator.numba.compiled_allocator import CompiledAllocator
from analyzer.simulate.allocator.bfc.bfc_options import BfcOptions
allocator = CompiledAllocator(BfcOptions.cpu(), 2)
assert allocator.feed(np.array([0, 1, 0]), np.array([1000, 5000, 0])) == 3
print(allocator.in_use_bytes)
"""


def _in_use(cache: Path) -> int:
    environment = {**os.environ, "TF_MEMORY_ANALYZER_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    "is_damaged", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kept", "damaged"]
)
def test_kept_and_damaged_code_gives_the_same(
    is_damaged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.simulate.allocator.numba import code_cache as kept

    fresh = _in_use(tmp_path)
    (code,) = tmp_path.glob("replay-*/**/*.nbc")
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path))
    assert kept.is_kept()
    if is_damaged:
        code.write_bytes(b"")
    assert _in_use(tmp_path) == fresh == 5120


def test_nothing_is_kept_where_the_cache_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.simulate.allocator.numba.code_cache import forget, keep_in, made_folder

    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", "off")
    assert made_folder() is None
    keep_in(None, None)
    forget(None)


def test_a_folder_that_cannot_be_made_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.simulate.allocator.numba.code_cache import made_folder

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path / "file" / "cache"))
    assert made_folder() is None


def test_no_cache_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from analyzer.simulate.allocator.numba.code_cache import is_kept, made_folder

    monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", str(tmp_path / "cache"))
    assert made_folder() is None
    assert not (tmp_path / "cache").exists()
    assert not is_kept()


def test_an_estimate_begins_the_cache_and_then_shorter_sequences_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.model.user_cache import create_cache_folder

    replay = importlib.import_module(
        "analyzer.simulate.allocator.replay"
    )  # not the function of that name

    monkeypatch.setattr(replay.compiled, "is_loaded", lambda: False)
    root = tmp_path / "home" / "cache"
    count = replay.KEEP_FROM_OPERATIONS
    for asked, expected in (("off", "reference"), (str(root), "compiled")):
        monkeypatch.setenv("TF_MEMORY_ANALYZER_CACHE", asked)
        create_cache_folder()
        assert replay.choose(replay.Engine.AUTO, count).value == expected
        assert replay.choose(replay.Engine.AUTO, count // 10).value == "reference"
    assert [path.name for path in root.parent.iterdir()] == ["cache"]
    assert not list(root.iterdir())
