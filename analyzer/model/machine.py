"""Cores and memory of this machine, and the cache folder.

The cache folder is the only place that a command writes besides its outputs. It is
``$TF_MEMORY_ANALYZER_CACHE`` (``off`` for none), else ``$XDG_CACHE_HOME/tf-memory-analyzer``. A cache
that cannot be read or written counts as absent.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))

    return os.cpu_count() or 1


def read_memory_bytes() -> int:
    """Return the machine's memory; 0 on Windows, where it is unknown."""
    if hasattr(os, "sysconf"):
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))

    return 0


@contextmanager
def send_stderr_to(path: Path) -> Iterator[None]:
    """Append what the process writes to standard error, also in C++, to a file, if both are open."""
    try:
        sys.stderr.flush()
        stderr = os.dup(2)
        sink = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except (AttributeError, OSError, ValueError):
        yield
        return

    try:
        os.dup2(sink, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(sink)


VARIABLE = "TF_MEMORY_ANALYZER_CACHE"
_OFF = frozenset({"off", "0", "no", "none", "false"})


def cache_folder() -> Path | None:
    """Return the path of the cache folder, which may not exist; None if it is switched off."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked:
        if asked.lower() in _OFF:
            return None

        return Path(asked).expanduser()

    base = os.environ.get("XDG_CACHE_HOME", "")

    with suppress(RuntimeError):  # no home folder
        return (
            Path(base) if os.path.isabs(base) else Path.home() / ".cache"
        ) / "tf-memory-analyzer"

    return None
