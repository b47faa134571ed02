"""Cards of the user's own, from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import analyze

from analyzer.cards import all_gpus, find_gpu, memory_limit
from analyzer.cards.catalogue import VARIABLE
from analyzer.model.errors import InputError

MIB = 1 << 20
OWN = {"card": [{"id": "my-card", "like": "t4", "reported_bytes": 8000 * MIB}]}


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


def written(folder: Path, content: object, name: str = "cards.json") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_card_like_another_has_its_figures_but_for_those_given(
    tmp_path: Path,
) -> None:
    t4 = find_gpu("t4")
    mine = find_gpu(str(written(tmp_path, OWN)))
    assert (mine.id, mine.memory_bytes, mine.memory_source) == (
        "my-card",
        8000 * MIB,
        "user",
    )
    assert (mine.sm_count, mine.l2_bytes) == (t4.sm_count, t4.l2_bytes)
    assert memory_limit(mine).bytes < memory_limit(t4).bytes
    assert find_gpu("my-card") == mine
    assert all_gpus()[0] == mine


def test_another_size_of_memory_is_derived_anew(tmp_path: Path) -> None:
    file = written(
        tmp_path, {"card": [{"id": "big", "like": "t4", "nominal_mib": 32768}]}
    )
    big = find_gpu(str(file))
    assert 28_000 * MIB < big.memory_bytes < 32768 * MIB
    assert big.memory_source == ""


def test_toml_is_read(tmp_path: Path) -> None:
    text = '[[card]]\nid = "my-card"\nlike = "t4"\nname = "Mine"\n'
    assert find_gpu(str(written(tmp_path, text, "cards.toml"))).name == "Mine"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[1",
        {"card": []},
        {"card": [{"id": "a b"}]},
        {"card": [{"id": "a", "like": "no-such-card"}]},
        {"card": [{"id": "a", "sm_count": 10}]},
        {"card": [{"id": "a", "like": "t4", "compute_capability": "1.0"}]},
        {"card": [{"id": "a", "like": "t4", "vram": 3}]},
        {"card": [{"id": "a", "like": "t4"}, {"id": "a", "like": "t4"}]},
        {"card": [{"id": "a", "like": "t4", "reported_bytes": -1}]},
    ],
)
def test_what_is_no_card_is_one_line(tmp_path: Path, content: object) -> None:
    with pytest.raises(InputError):
        find_gpu(str(written(tmp_path, content)))


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ended = analyze("gpus", str(tmp_path / "none.json"))
    assert ended.code == 2
    assert "Traceback" not in ended.err
