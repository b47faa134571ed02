"""Progress on stderr: a bar on terminals, or a line for each stage with ``--verbose``."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal

Progress = Callable[[str, float], None]

ProgressForm = Literal["none", "bar", "lines"]
"""``bar`` shows nothing if stderr is no terminal."""

_DELAY_S: Final = 2.0
"""A command that ends sooner shows no bar."""


def choose_progress(quiet: bool, verbose: bool) -> ProgressForm:
    """Return the form for ``--quiet`` and ``--verbose``."""
    if verbose:
        return "lines"
    return "none" if quiet else "bar"


@contextlib.contextmanager
def progress_bar(form: ProgressForm = "bar") -> Iterator[Progress]:
    """Show the stage and the completed share, 0 to 1, that the yielded function is called with."""
    if form == "lines":
        yield _print_stages()
    elif form == "none" or not sys.stderr.isatty():
        yield lambda stage, share: None
    else:
        with _delayed_bar() as show:
            yield show


def _print_stages() -> Progress:
    begin = time.monotonic()
    last = ""

    def show(stage: str, share: float) -> None:
        nonlocal last
        if stage != last:
            print(f"{time.monotonic() - begin:6.1f} s  {stage}", file=sys.stderr, flush=True)
        last = stage

    return show


@contextlib.contextmanager
def _delayed_bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("starting", total=1.0)
    starter = threading.Timer(_DELAY_S, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda stage, share: bar.update(task, description=stage, completed=share)
    finally:
        starter.cancel()
        starter.join()
        bar.stop()
