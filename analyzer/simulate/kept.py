"""Machine code of the compiled allocator, kept in the user's cache between runs.

Compiling takes seconds, loading what was compiled a fraction of one. The place is the one that
compiled plans have (:func:`analyzer.compiler.cache.default_cache`), a folder for each state of the
sources, and only where that place exists: looking at a trace begins no cache. One that cannot be read
or written is no error: it is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
from numba.core import config

from analyzer.compiler.cache import default_cache


def folder_for(sources: Sequence[Path]) -> Path | None:
    """Return the folder for what these sources compile to, made; None where nothing can be kept."""
    root = default_cache().folder
    if root is None or not root.is_dir():
        return None
    digest = hashlib.sha256(numba.__version__.encode())
    try:
        for source in sources:
            digest.update(source.read_bytes())
        folder = root / f"replay-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def keep_in(folder: Path | None, function: Any) -> None:
    """Have Numba load a compiled function from ``folder``, or write it there once compiled."""
    if folder is None:
        return
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
