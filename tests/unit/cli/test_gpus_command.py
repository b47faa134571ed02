"""The list of cards in a narrow terminal."""

import pytest
from builders import analyze

from analyzer.cards.catalogue import all_gpus


@pytest.mark.parametrize("width", ["40", "80", "160"])
def test_what_gpu_takes_is_never_cut(
    monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    """Two cards were listed as ``rtx-4070-ti…``."""
    monkeypatch.setenv("COLUMNS", width)
    assert len(analyze("gpus").out.splitlines()) <= 28
    lines = analyze("gpus", "list").out.splitlines()
    told = {line.split()[0] for line in lines if line.split()}
    assert {card.id for card in all_gpus()} <= told
