"""The file of the kit that records a card."""

from __future__ import annotations

import gzip
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

KIT = Path(__file__).parents[3] / "benchmarks" / "card"


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the kit by name."""
    monkeypatch.syspath_prepend(str(KIT))
    yield importlib.import_module
    for name in ("card_record", "cudnn_sweep"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"card":1}', mtime=0)],
)
def test_a_foreign_file_is_refused(kit: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "card.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a record of a card"):
        kit("card_record").read_record(path)
