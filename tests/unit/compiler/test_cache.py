"""The cache of compiled plans: kept whole, bounded, switched off, never an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from analyzer.model.contract.card_note import Statistics
from analyzer.model.user_cache import VARIABLE, cache_folder
from analyzer.simulate.compiler.card_compilation import PlanCache, make_key
from analyzer.simulate.compiler.compile_child import CompiledModule


def plan(hlo: bytes) -> CompiledModule:
    statistics = Statistics(
        code_bytes=0, argument_bytes=3, output_bytes=2, alias_bytes=1, temp_bytes=4
    )
    return CompiledModule(hlo=hlo, statistics=statistics, compiler="some compiler 1.0")


def test_a_kept_plan_is_found_again(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "not" / "there")
    assert cache.find("k") is None
    cache.store("k", plan(b"a\nb\0c"))
    found = cache.find("k")
    assert found is not None
    assert (found.hlo, found.statistics, found.compiler) == (
        b"a\nb\0c",
        plan(b"").statistics,
        "some compiler 1.0",
    )
    assert [file.name for file in (tmp_path / "not" / "there").iterdir()] == ["k.plan.gz"]


@pytest.mark.parametrize("keep", [0, 10, 40, -1])
def test_a_damaged_plan_is_not_there(tmp_path: Path, keep: int) -> None:
    cache = PlanCache(tmp_path)
    cache.store("k", plan(os.urandom(500)))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:keep])
    assert cache.find("k") is None


def test_a_plan_of_other_bytes_is_not_there(tmp_path: Path) -> None:
    import gzip

    cache = PlanCache(tmp_path)
    cache.store("k", plan(b"hlo"))
    (file,) = tmp_path.iterdir()
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + b"more"))
    assert cache.find("k") is None


def test_the_oldest_go_first(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, limit_bytes=2900)
    for number, name in enumerate("abc"):
        cache.store(name, plan(os.urandom(1000)))
        os.utime(tmp_path / f"{name}.plan.gz", (number, number))
    cache.store("d", plan(os.urandom(1000)))
    assert [name for name in "abcd" if cache.find(name)] == ["c", "d"]


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = PlanCache(tmp_path / "file")
    cache.store("k", plan(b"x"))
    assert cache.find("k") is None


def test_the_environment_chooses_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tf-memory-analyzer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "tf-memory-analyzer"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv(VARIABLE, "off")
    off = PlanCache(cache_folder())
    off.store("k", plan(b"x"))
    assert off.folder is None
    assert off.find("k") is None


def test_everything_that_decides_a_plan_is_in_its_key() -> None:
    base = (b"module", "target", ("--flag",), "compiler 1")
    others = [
        (b"modul", "target", ("--flag",), "compiler 1"),
        (b"module", "Target", ("--flag",), "compiler 1"),
        (b"module", "target", (), "compiler 1"),
        (b"module", "target", ("--flag",), "compiler 2"),
        (b"modulet", "arget", ("--flag",), "compiler 1"),
    ]
    keys = {make_key(*parts) for parts in [base, *others]}
    assert len(keys) == 1 + len(others)
    assert make_key(*base) == make_key(*base)
