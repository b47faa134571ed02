"""Files by which a watched program passes its observations on. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Final

import msgspec

from analyzer.model.contract.watch_note import WatchNote

_UNTRACED_FILE: Final = "watch.json"
"""The ``WatchNote`` of a program without a traced step."""

FAULT_FILE: Final = "watch.error"
"""The traceback of an error of ours, which the script survives."""

BEGUN_FILE: Final = "watch.begun"
"""Empty; exists once the script has imported TensorFlow."""

USAGE_FILE: Final = "watch.usage"
"""Exists if the script's own ``argparse`` ended it."""

DUMP: Final = ".xla"
"""Folder of XLA's compiled modules while the script runs."""


def write_untraced(folder: Path, note: WatchNote) -> None:
    """Write the note of a program without a traced step."""
    text = json.dumps(msgspec.to_builtins(note, str_keys=True))
    (folder / _UNTRACED_FILE).write_text(text, "utf-8")


def read_untraced(folder: Path) -> WatchNote | None:
    """Read and remove the note of ``write_untraced``; None if there is none or it is damaged."""
    path = folder / _UNTRACED_FILE
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        note = msgspec.json.decode(path.read_bytes(), type=WatchNote)
        path.unlink()
        return note
    return None
