"""Calls whose process dies; a new process imports them at once."""

import os
import signal
from pathlib import Path


def die_once(asked: tuple[Path, int]) -> int:
    """Return a number; the first process that is asked for 1 dies."""
    folder, number = asked
    mark = folder / "died"
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(asked: tuple[Path, int]) -> int:
    if asked[1] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return asked[1]
