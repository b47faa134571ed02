from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from make_recording import Made, make_recording
from msgspec.structs import replace
from rich.console import Console

from analyzer.report.diff_sections import (
    Diff,
    allowed_growth,
    build_diff,
    diff_document,
)
from analyzer.report.render.terminal import print_terminal
from analyzer.report.untrusted import unbroken


@pytest.fixture(scope="module")
def pair() -> tuple[Made, Made]:
    return make_recording(400), make_recording(600, scale=1.5)


@pytest.fixture(scope="module")
def grown(pair: tuple[Made, Made]) -> Diff:
    (a, b) = pair
    return build_diff((a.report, a.recording), (b.report, b.recording))


def test_growth_is_the_difference_of_the_requested_peaks(
    grown: Diff, pair: tuple[Made, Made]
) -> None:
    a, b = (made.document["peak"]["requested_bytes"] for made in pair)
    assert grown.growth_bytes == b - a > 0
    assert grown.exceeds("0%")
    assert grown.exceeds("1B")
    assert not grown.exceeds("1000%")
    assert not grown.exceeds(f"{b - a}B")
    assert grown.exceeds(f"{b - a - 1}B")


@pytest.mark.parametrize(
    ("allowed", "size_bytes"),
    [("5%", 50), (" 0 % ", 0), ("2.5%", 25), ("1KiB", 1024), ("7 B", 7)],
)
def test_allowed_growth(allowed: str, size_bytes: int) -> None:
    assert allowed_growth(allowed, 1000) == size_bytes


@pytest.mark.parametrize("width", [20, 60, 200])
def test_hostile_names_stay_text(width: int, grown: Diff) -> None:
    rows = (replace(grown.report.layers[0], name="\x1b[31m[bold]x" * 40),)
    console = Console(width=width, record=True, file=io.StringIO())
    print_terminal(
        diff_document(replace(grown.report, layers=rows, notes=("\x1b[0m[/]",))),
        console,
    )
    assert "\x1b[31m[bold]" not in console.export_text(styles=True)


def test_files_hold_the_document(grown: Diff, tmp_path: Path) -> None:
    grown.to_json(tmp_path / "d.json")
    grown.to_html(tmp_path / "d.html")
    grown.to_markdown(tmp_path / "d.md")
    document = json.loads((tmp_path / "d.json").read_text())
    assert document == json.loads(json.dumps(grown.document))
    assert document["kind"] == "diff"
    assert (
        unbroken(grown.document["headline"].split(" to ")[0])
        in (tmp_path / "d.html").read_text()
    )
    assert "difference" in (tmp_path / "d.md").read_text()
    assert "grew" in grown._repr_html_()
    assert "grew" in repr(grown)
