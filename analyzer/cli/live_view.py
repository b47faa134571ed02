"""``analyze trace script.py --live``: the memory of a script in the terminal while it runs."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from analyzer.capture.watch.script_launch import LIVE_FILE
from analyzer.model.units import format_bytes, signed_bytes

_BLOCKS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Bytes in use and their slope of the script whose run folder is ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readings: deque[list[int]] = deque(maxlen=60)

    def render(self) -> RenderableType:
        """Return the view of the latest reading."""
        words = (self._folder / LIVE_FILE).read_text("ascii").split()
        if len(words) == 4:  # the file is not being written
            self._readings.append([*map(int, words)])

        if not self._readings:
            return Text("Waiting for the first step.", "dim")

        earlier = self._readings[0]
        (step, in_use, peak, resident) = self._readings[-1]
        slope = (in_use - earlier[1]) // max(step - earlier[0], 1)

        highest = len(_BLOCKS) - 1
        levels = (one[1] * highest // max(peak, 1) for one in self._readings)
        figures = (
            f"step {step}: {format_bytes(in_use)} in TensorFlow's pool, peak "
            f"{format_bytes(peak)}, "
            f"process {format_bytes(resident)}, slope {signed_bytes(slope)} a step"
        )

        curve = Text("".join(_BLOCKS[level] for level in levels), "cyan")

        return Group(curve, Text(figures, "bold"))


@contextmanager
def show_live(
    folder: Path,
    output: IO[bytes],
    console: Console | None = None,
) -> Iterator[None]:
    """Show a running script below its own output."""
    console = console or Console(stderr=True)

    def copy() -> None:
        with output:
            for line in output:
                console.print(Text(line.decode("utf-8", "replace").rstrip("\n")))

    render = LiveView(folder).render
    with Live(
        get_renderable=render,
        console=console,
        refresh_per_second=2,
        transient=True,
    ):
        copier = threading.Thread(target=copy, daemon=True)
        copier.start()
        yield
        copier.join(1.0)  # the script's own children may hold the pipe
