"""Files in which a watched program leaves what was seen. Needs no TensorFlow."""

from __future__ import annotations

from typing import Final

UNTRACED_FILE: Final = "watch.json"
"""What was seen where no step was traced: a :class:`analyzer.contract.watch_note.WatchNote`."""

FAULT_FILE: Final = "watch.error"
"""Where the child tells what of ours went wrong: the script goes on without it."""

BEGUN_FILE: Final = "watch.begun"
"""Empty; there as soon as the script has imported TensorFlow."""

DUMP: Final = ".xla"
"""Folder that XLA leaves compiled modules in while the script runs."""
