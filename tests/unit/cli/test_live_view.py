"""The view of a running script: its latest reading and the slope."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from builders import refusal
from rich.console import Console

from analyzer.capture.watch.script_launch import LIVE_FILE, run_script
from analyzer.cli.trace_command import LiveView, show_live
from analyzer.model.contract.child_messages import WatchRequest

MIB = 1 << 20


def make_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_it_shows_the_latest_reading_and_the_slope(tmp_path: Path) -> None:
    view = LiveView(tmp_path)
    console = make_console()
    for words in (f"7 {MIB} {MIB} {MIB}", f"9 {3 * MIB} {4 * MIB} {MIB}"):
        (tmp_path / LIVE_FILE).write_text(words)
        console.print(view.render())
    shown = " ".join(text_of(console).split())
    assert "peak 4.00 MiB" in shown
    assert "slope +1.00 MiB a step" in shown


def test_output_of_the_script_stays_above_it(tmp_path: Path) -> None:
    console = make_console()
    (tmp_path / LIVE_FILE).touch()
    with show_live(tmp_path, io.BytesIO(b"epoch 1\nloss [bold]0.5\n"), console):
        pass
    shown = text_of(console)
    assert (
        shown.index("epoch 1") < shown.index("loss [bold]0.5") < shown.rindex("Waiting")
    )


def test_it_needs_a_terminal(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    assert "--live needs a terminal" in refusal("trace", script, "--live")


SCRIPT = """
import tensorflow as tf
step = tf.function(lambda x: tf.reduce_sum(x * x))
for _ in range(20):
    step(tf.ones((256, 256)))
print("the end")
"""


@pytest.mark.tf
@pytest.mark.slow
def test_a_script_reports_its_readings(tmp_path: Path) -> None:
    console, words = make_console(), [""]

    @contextmanager
    def view(folder: Path, output: IO[bytes]) -> Iterator[None]:
        with show_live(folder, output, console):
            yield
        words[0] = (folder / LIVE_FILE).read_text()

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    end = run_script(
        WatchRequest(script=str(script), folder=""),
        tmp_path / "out",
        force=False,
        view=view,
    )
    assert end.status == 0
    assert "the end" in text_of(console)
    step, in_use, peak, resident = map(int, words[0].split())
    assert 1 <= step <= 20
    assert 0 < in_use <= peak < resident
    assert not (end.folder / LIVE_FILE).exists()
