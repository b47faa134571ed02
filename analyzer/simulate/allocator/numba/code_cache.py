"""Machine code of the compiled allocator, kept in the user's cache between runs.

Compiling takes seconds, loading what was compiled a fraction of one. The place is the one that
compiled plans have (``cache_folder``), a folder for each state of the
sources, and only where that place exists: looking at a trace begins no cache. One that cannot be read
or written is no error: it is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from analyzer.model.user_cache import cache_folder

_SOURCES: Final = ("bfc_operations.py", "chunk_arrays.py")


def kept_in() -> Path | None:
    """Return the folder for what the sources compile to, there or not; None for nowhere."""
    root = cache_folder()
    if root is None or not root.is_dir():
        return None
    try:
        digest = hashlib.sha256(metadata.version("numba").encode())
        for source in _SOURCES:
            digest.update(Path(__file__).with_name(source).read_bytes())
    except (OSError, metadata.PackageNotFoundError):
        return None
    return root / f"replay-{digest.hexdigest()[:16]}"


def is_kept() -> bool:
    """Tell whether compiled code lies there, so that it need only be loaded."""
    folder = kept_in()
    return folder is not None and next(folder.glob("**/*.nbc"), None) is not None


def made_folder() -> Path | None:
    """Return the folder, made; None where nothing can be kept."""
    folder = kept_in()
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if folder is not None and os.access(folder, os.W_OK) else None


def keep_in(folder: Path | None, function: Any) -> None:
    """Have Numba load a compiled function from ``folder``, or write it there once compiled."""
    if folder is None:
        return
    from numba.core import (
        config,
    )  # takes a third of a second, and is not needed to look what is kept

    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        function.enable_caching()
    except (OSError, RuntimeError):  # Numba finds no place to write
        return
    finally:
        config.CACHE_DIR = before


def forget(folder: Path | None) -> None:
    """Remove what was kept, since it cannot be read."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
