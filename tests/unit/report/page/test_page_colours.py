"""The colours of the page can be told from what is behind them, in both themes."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import analyzer.report.render as render
from analyzer.model.choice import Category

FOLDER = Path(render.__file__).parent
LEAST_MARK, LEAST_TEXT = 3.0, 4.5
"""Contrast that WCAG 2.2 asks of graphics (1.4.11) and of text (1.4.3, level AA)."""

TEXTS = (
    ("ink", "page"),
    ("ink", "panel"),
    ("ink", "band"),
    ("muted", "page"),
    ("muted", "panel"),
    ("muted", "band"),
    ("accent", "page"),
    ("accent", "panel"),
    ("limit", "page"),
    ("limit", "panel"),
    ("limit", "bad"),
    ("limit", "band"),
    ("pool", "page"),
    ("good", "page"),
    ("good", "panel"),
    ("good", "band"),
    ("warn-ink", "page"),
    ("warn-ink", "warn"),
    ("caution", "panel"),
)


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, by WCAG 2."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def themes() -> dict[str, dict[str, str]]:
    style = (FOLDER / "assets/shared.css").read_text(encoding="utf-8")
    heads = {
        "light": r"^:root \{",
        "dark": r'^:root\[data-theme="dark"\] \{',
        "system": r':root:not\(\[data-theme="light"\]\) \{',
    }
    found = {}
    for name, head in heads.items():
        block = re.split(head, style, maxsplit=1, flags=re.MULTILINE)[1].split("}")[0]
        found[name] = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    return found


def test_the_system_theme_is_the_chosen_dark_one() -> None:
    assert themes()["system"] == themes()["dark"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_categories_stand_out_from_the_background(theme: str) -> None:
    colours = themes()[theme]
    for category in Category:
        for behind in ("page", "panel", "band"):
            ratio = contrast(colours[category.value.replace("_", "-")], colours[behind])
            assert ratio >= LEAST_MARK, (category, behind, ratio)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_two_categories_have_one_colour(theme: str) -> None:
    colours = themes()[theme]
    names = [category.value.replace("_", "-") for category in Category]
    for one, other in combinations(names, 2):
        parts = [
            [int(colours[name][start : start + 2], 16) for start in (1, 3, 5)]
            for name in (one, other)
        ]
        assert sum(abs(a - b) for a, b in zip(*parts, strict=True)) > 60, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), TEXTS)
def test_text_can_be_read(theme: str, text: str, behind: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[text], colours[behind]) >= LEAST_TEXT


def test_a_notebook_may_be_light_or_dark() -> None:
    text = (FOLDER.parent / "page/assets/inline.html").read_text(encoding="utf-8")
    colours = dict(re.findall(r"'([a-z_]+)': '(#[0-9a-f]{6})'", text.splitlines()[0]))
    assert set(colours) == {category.value for category in Category}
    for colour in colours.values():
        assert contrast(colour, "#ffffff") >= LEAST_MARK
        assert contrast(colour, "#111111") >= LEAST_MARK
