"""How wide the tables are that go into a file or a pipe."""

import pytest

from analyzer.cli.stdout import USUAL_WIDTH, terminal


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("80", 80),
        ("0", USUAL_WIDTH),
        ("wide", USUAL_WIDTH),
    ],
)
def test_columns_say_how_wide_a_piped_report_is(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert terminal().width == width
