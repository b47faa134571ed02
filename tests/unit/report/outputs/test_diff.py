import io

import pytest
from make_recording import Made, make_recording
from msgspec.structs import replace
from rich.console import Console

from analyzer.report.diff_sections import diff_document
from analyzer.report.render.terminal import print_terminal
from analyzer.report.result import Diff, allowed_growth, build_diff


@pytest.fixture(scope="module")
def pair() -> tuple[Made, Made]:
    return make_recording(400), make_recording(600, scale=1.5)


@pytest.fixture(scope="module")
def grown(pair: tuple[Made, Made]) -> Diff:
    (a, b) = pair
    return build_diff((a.report, a.recording), (b.report, b.recording))


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
