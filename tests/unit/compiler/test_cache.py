"""The file of a plan."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from analyzer.model.contract.card_note import PlanHead, Statistics
from analyzer.model.user_cache import VARIABLE, cache_folder
from analyzer.simulate.compiler.compile_child import CompiledModule
from analyzer.simulate.compiler.step_plans import pack_plan, unpack_plan


def plan(hlo: bytes) -> CompiledModule:
    statistics = Statistics(
        code_bytes=0, argument_bytes=3, output_bytes=2, alias_bytes=1, temp_bytes=4
    )
    digest = hashlib.sha256(hlo).hexdigest()
    head = PlanHead(compiler="some compiler 1.0", statistics=statistics, sha256=digest)
    return CompiledModule(hlo=hlo, head=head)


def test_a_packed_plan_is_unpacked_unchanged() -> None:
    assert unpack_plan(pack_plan(plan(b"a\nb\0c"))) == plan(b"a\nb\0c")


@pytest.mark.parametrize("keep", [0, 10, 40, -1])
def test_a_cut_plan_is_damaged(keep: int) -> None:
    with pytest.raises((ValueError, OSError)):
        unpack_plan(pack_plan(plan(os.urandom(500)))[:keep])


def test_a_plan_of_other_bytes_is_damaged() -> None:
    content = gzip.decompress(pack_plan(plan(b"hlo"))) + b"more"
    with pytest.raises(ValueError, match="digest"):
        unpack_plan(gzip.compress(content))


def test_the_environment_chooses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tf-memory-analyzer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "tf-memory-analyzer"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv(VARIABLE, "off")
    assert cache_folder() is None
