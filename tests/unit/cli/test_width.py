"""How wide the tables are that go into a file or a pipe."""

import pytest

from analyzer.cli.stdout import USUAL_WIDTH, terminal


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        (None, USUAL_WIDTH),
        ("80", 80),
        ("0", USUAL_WIDTH),
        ("wide", USUAL_WIDTH),
    ],
)
def test_columns_say_how_wide_a_piped_report_is(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert terminal().width == width
