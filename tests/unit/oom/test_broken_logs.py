"""Logs that a screen, a page or a mail broke into lines say what they said before."""

from __future__ import annotations

import io
import textwrap

import pytest
from unit.oom.dump_wordings import VERSIONS, Scene, log_of
from unit.oom.test_every_version import FULL, PIECES

from analyzer.model.contract.report.oom_file import OomFailure
from analyzer.oom import read_oom_log


def failures(text: str) -> tuple[OomFailure, ...]:
    return tuple(read_oom_log(io.BytesIO(text.encode()), "a log").document.failures)


def on_screen(text: str, width: int, *, keeps_blanks: bool) -> str:
    """Break lines as a terminal does; a copy of it may leave out blanks at their ends."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += [line[at : at + width] for at in range(0, max(len(line), 1), width)]
    return "".join(f"{line if keeps_blanks else line.rstrip()}\n" for line in lines)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scene", [PIECES, FULL], ids=["pieces", "full"])
@pytest.mark.parametrize("width", [72, 80, 100, 120])
def test_a_screens_width_changes_no_figure(scene: Scene, version: str, width: int) -> None:
    (whole,) = failures(log_of(scene, version))
    for keeps_blanks in (True, False):
        (failure,) = failures(on_screen(log_of(scene, version), width, keeps_blanks=keeps_blanks))
        assert failure.asked == whole.asked
        assert failure.op == whole.op
        assert failure.in_use_bytes == scene.in_use
        assert failure.pool_bytes == scene.pool
        assert failure.largest_hole_bytes == scene.largest_hole
        assert failure.verdict.id == whole.verdict.id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("width", [60, 76, 100])
def test_an_error_broken_between_words_is_one(version: str, width: int) -> None:
    told = [line for line in log_of(FULL, version).splitlines() if "OOM" in line or "ode" in line]
    broken = [part for line in told for part in textwrap.wrap(line, width, break_long_words=False)]
    (failure,) = failures("\n".join(broken))
    assert failure.asked is not None
    assert failure.asked.shape == FULL.shape
    assert failure.asked.requested_bytes == FULL.asked


def test_what_follows_an_unbroken_error_is_not_taken_for_more_of_it() -> None:
    one, two = (f"OOM when allocating tensor with shape[{n},4]" for n in (5, 7))
    text = f"{one} and type half on\n  (1) {two} and type half on\n"
    assert [each.asked and each.asked.shape for each in failures(text)] == [(5, 4), (7, 4)]
