"""The folder for what is kept between runs: the one thing written outside of a command's own outputs.

It is ``$XDG_CACHE_HOME/tf-memory-analyzer`` (else ``~/.cache/tf-memory-analyzer``).
``TF_MEMORY_ANALYZER_CACHE`` names another folder, or is ``off``. Compiled plans, the compiled
allocator's machine code and the phantom card's libraries lie there. A cache that cannot be read or
written is no error: it is not there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "TF_MEMORY_ANALYZER_CACHE"
_OFF: Final = frozenset({"off", "0", "no", "none", "false"})


def cache_folder() -> Path | None:
    """Return the folder that the environment names, there or not; None for no cache."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked.lower() in _OFF:
        return None
    if asked:
        return Path(asked).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError:  # no home folder
        return None
    return root / "tf-memory-analyzer"


def create_cache_folder() -> None:
    """Make the folder where it may be made: what takes seconds is then done once, not every time."""
    root = cache_folder()
    if root is not None:
        with contextlib.suppress(OSError):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
