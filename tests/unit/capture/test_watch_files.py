"""What is left of a watched program of which no step was traced."""

from __future__ import annotations

from pathlib import Path

from analyzer.capture.watch.script_launch import read_untraced, write_untraced
from analyzer.model.contract.watch_note import Reading, WatchNote


def test_what_was_seen_is_taken_once(tmp_path: Path) -> None:
    note = WatchNote(steps=2, readings=(Reading(step=1, in_use_bytes=256),), ended="SIGTERM")
    write_untraced(tmp_path, note)
    assert read_untraced(tmp_path) == note
    assert read_untraced(tmp_path) is None
    assert not list(tmp_path.iterdir())
