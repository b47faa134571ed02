"""``analyze trace script.py --live``: the memory of a script in the terminal while it runs."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from analyzer.capture.watch.script_launch import LIVE_FILE
from analyzer.model.errors import AnalyzerError
from analyzer.model.units import format_bytes, signed_bytes
from analyzer.report.render.terminal import section_parts
from analyzer.report.report_sections import layers_section
from analyzer.tracing.parse.logdir import RUN_FILE

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_LAYERS: Final = 8


class LiveView:
    """Bytes in use, their slope and the largest layers of the script whose run folder is ``folder``."""

    def __init__(self, folder: Path, width: int = 80) -> None:
        self._folder, self._width = folder, width
        self._readings: deque[list[int]] = deque(maxlen=60)
        self._layers: list[RenderableType] | None = None

    def render(self) -> RenderableType:
        """Return the view of the latest reading."""
        words = (self._folder / LIVE_FILE).read_text("ascii").split()
        if len(words) == 4:  # the file is not being written
            self._readings.append([*map(int, words)])

        if not self._readings:
            return Text("Waiting for the first step.", "dim")

        if self._layers is None and (self._folder / RUN_FILE).is_file():
            self._layers = []
            with suppress(AnalyzerError):  # the report after the run states the reason
                from analyzer.session.opening import open_result

                section = layers_section(
                    open_result(self._folder, search=False).report, _LAYERS
                )
                self._layers = [*section_parts(section, self._width)]

        earlier, (step, in_use, peak, resident) = self._readings[0], self._readings[-1]
        slope = (in_use - earlier[1]) // max(step - earlier[0], 1)
        levels = (one[1] * (len(_BLOCKS) - 1) // max(peak, 1) for one in self._readings)
        figures = (
            f"step {step}: {format_bytes(in_use)} in TensorFlow's pool, peak "
            f"{format_bytes(peak)}, "
            f"process {format_bytes(resident)}, slope {signed_bytes(slope)} a step"
        )
        curve = Text("".join(_BLOCKS[level] for level in levels), "cyan")

        return Group(curve, Text(figures, "bold"), *self._layers or ())


@contextmanager
def show_live(
    folder: Path, output: IO[bytes], console: Console | None = None
) -> Iterator[None]:
    """Show a running script below its own output."""
    console = console or Console(stderr=True)

    def copy() -> None:
        with output:
            for line in output:
                console.print(Text(line.decode("utf-8", "replace").rstrip("\n")))

    render = LiveView(folder, console.width).render
    with Live(
        get_renderable=render, console=console, refresh_per_second=2, transient=True
    ):
        copier = threading.Thread(target=copy, daemon=True)
        copier.start()
        yield
        copier.join(1.0)  # the script's own children may hold the pipe
