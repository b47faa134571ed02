"""The file of the kit that records a card."""

from __future__ import annotations

import gzip
import importlib
from pathlib import Path

import pytest

KIT = Path(__file__).parents[3] / "benchmarks" / "card"


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"card":1}', mtime=0)],
)
def test_a_foreign_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    monkeypatch.syspath_prepend(str(KIT))
    card_record = importlib.import_module("card_record")
    path = tmp_path / "card.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a record of a card"):
        card_record.read_record(path)
