"""The allocator's loop compiled by Numba; the machine code is stored between processes.

Importing Numba takes about a second, compiling five, loading stored code half of one, so all of it
waits for the first long sequence. The user's cache has a folder of code per state of the sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from analyzer.model.user_cache import cache_folder
from analyzer.simulate.allocator.bfc import bfc_chunks, bfc_operations, bfc_pool
from analyzer.simulate.allocator.bfc.bfc_pool import BfcOptions

if TYPE_CHECKING:
    from analyzer.simulate.allocator.bfc.bfc_pool import Column

Run: TypeAlias = Callable[..., int]

_COMPILED_MODULES: Final = (bfc_chunks, bfc_operations)
_SOURCES: Final = (__file__, *(str(module.__file__) for module in (bfc_pool, *_COMPILED_MODULES)))

_NUMBA_OPTIONS: Final = {
    "nogil": True,
    "boundscheck": False,
    "no_cfunc_wrapper": True,  # C never calls it; saves a fifth of the compile time
    "_nrt": False,  # the code allocates no arrays; without reference counts it is 6 times as fast
}


COMPILE_FROM_OPERATIONS: Final = 2_000_000
"""From here on compiling (5 s) and running is faster than plain Python (0.4 million/s)."""

STORE_FROM_OPERATIONS: Final = 500_000
"""The same if the machine code can be stored, so that later commands only load it."""

LOAD_FROM_OPERATIONS: Final = 150_000
"""From here on loading stored code (0.5 s) and running is faster."""


def prepare(n_operations: int) -> None:
    """Load the compiled loop, which is then always used, if so many operations repay it."""
    if not is_loaded() and (
        n_operations >= COMPILE_FROM_OPERATIONS
        or (n_operations >= STORE_FROM_OPERATIONS and code_folder() is not None)
        or (n_operations >= LOAD_FROM_OPERATIONS and has_stored_code())
    ):
        load_run()


def is_loaded() -> bool:
    """Return whether the compiled loop is loaded, so that using it costs nothing more."""
    return load_run.cache_info().currsize > 0


@cache
def load_run() -> Run | None:
    """Return the compiled loop; None if Numba is missing or cannot compile it."""
    for _ in range(2):
        folder = _make_code_folder()
        try:
            # Numba compiles or loads at the first call.
            options, none = BfcOptions(), np.zeros(0, np.int64)
            settings = bfc_pool.PoolSettings.from_options(options)
            pool = bfc_pool.new_pool(options, is_compiled=True)
            run: Run = _compile(folder)
            run(settings, pool, none, none, none, none, 0, 0, np.zeros((0, 5), np.int64))
            return run
        except Exception:  # of many types; plain Python gives the same figures
            if folder is None:
                break
            shutil.rmtree(folder, ignore_errors=True)  # stored code may be unreadable
    return None


def _compile(folder: Path | None) -> Any:
    """Return ``bfc_operations.run`` as a Numba function, stored in ``folder`` unless that is None."""
    import numba
    from numba.core import config

    scope: dict[str, Any] = vars(bfc_chunks) | vars(bfc_operations)
    modules = {module.__name__ for module in _COMPILED_MODULES}
    functions: dict[str, Any] = {
        name: value
        for name, value in scope.items()
        if isinstance(value, FunctionType) and value.__module__ in modules
    }
    functions["shift"] = _shift
    for name, function in functions.items():
        # A copy of the function that finds the other compiled functions among its globals.
        scope[name] = numba.njit(**_NUMBA_OPTIONS)(FunctionType(function.__code__, scope, name))
    run = scope["run"]
    if folder is not None:
        before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
        try:
            with contextlib.suppress(OSError, RuntimeError):  # Numba finds no place to write
                run.enable_caching()
        finally:
            config.CACHE_DIR = before
    return run


def _shift(row: Column, first: int, last: int, by: int) -> None:
    """Replace ``bfc_chunks.shift``: Numba copies overlapping slices, and moves in a loop."""
    for i in range(last - first):
        at = last - 1 - i if by > 0 else first + i
        row[at + by] = row[at]


def code_folder() -> Path | None:
    """Return the folder for the machine code of these sources; None without a cache."""
    root = cache_folder()
    if root is None or not root.is_dir():
        return None
    try:
        digest = hashlib.sha256(metadata.version("numba").encode())
        for source in _SOURCES:
            digest.update(Path(source).read_bytes())
    except (OSError, metadata.PackageNotFoundError):
        return None
    return root / f"replay-{digest.hexdigest()[:16]}"


def has_stored_code() -> bool:
    """Return whether an earlier process has stored the machine code."""
    folder = code_folder()
    return folder is not None and any(folder.glob("**/*.nbc"))


def _make_code_folder() -> Path | None:
    """Create the folder for machine code; return None if nothing can be stored."""
    folder = code_folder()
    with contextlib.suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    return folder if folder is not None and os.access(folder, os.W_OK) else None
