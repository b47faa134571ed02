"""Files in which a watched program leaves what was seen. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

import msgspec

from analyzer.model.contract.watch_note import WatchNote

_UNTRACED_FILE: Final = "watch.json"
"""What was seen where no step was traced: a ``WatchNote``."""

FAULT_FILE: Final = "watch.error"
"""Where the child tells what of ours went wrong: the script goes on without it."""

BEGUN_FILE: Final = "watch.begun"
"""Empty; there as soon as the script has imported TensorFlow."""

DUMP: Final = ".xla"
"""Folder that XLA leaves compiled modules in while the script runs."""


def write_untraced(folder: Path, note: WatchNote) -> None:
    """Leave what was seen in a folder where no step was traced."""
    text = json.dumps(msgspec.to_builtins(note, str_keys=True))
    (folder / _UNTRACED_FILE).write_text(text, "utf-8")


def read_untraced(folder: Path) -> WatchNote | None:
    """Read what ``write_untraced`` left, and remove it; None where there is nothing readable."""
    path = folder / _UNTRACED_FILE
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        note = msgspec.json.decode(path.read_bytes(), type=WatchNote)
        path.unlink()
        return note
    return None
