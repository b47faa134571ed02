"""The pages of the sample traces: every view opens, and every number is the document's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from page_driver import Page

import analyzer
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.choice import Category
from analyzer.model.units import format_bytes
from analyzer.report.result import Result
from analyzer.session.opening import open_result

TRACES = Path(__file__).parents[2] / "traces"
SAMPLES = ("cnn", "transformer", "jit", "eager", "oom", "infer")
TABS = ("tensors", "lifetimes", "layers", "ops", "map")
LIMITS = {"fits": 16 << 20, "fails": 8 << 20}
QUICK = ("transformer", "oom", "fails")
"""Samples of the quick run; the nightly run takes all."""


def _mark_slow(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


FIGURES = (
    "[...document.querySelectorAll('[data-path]')]"
    ".map((it) => [it.dataset.path, Number(it.dataset.bytes), it.textContent, it.title])"
)


@cache
def result_of(name: str) -> Result:
    """Open a sample, or the transformer under one of the limits."""
    if name in LIMITS:
        wanted = WhatIf(memory_limit_bytes=LIMITS[name])
        return open_result(TRACES / "transformer", what_if=wanted)
    return analyzer.open_trace(TRACES / name)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples")


def page_of(folder: Path, name: str) -> Path:
    path = folder / f"{name}.html"
    if not path.exists():
        result_of(name).to_html(path)
    return path


def value_at(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def check_figures(page: Page, document: dict[str, Any], least: int) -> set[str]:
    figures = page.js(FIGURES)
    assert len(figures) >= least
    for path, size_bytes, text, title in figures:
        expected = value_at(document, path)
        assert (size_bytes, text) == (expected, format_bytes(expected)), path
        assert title == f"{expected:,} bytes"
    return {path for path, *_ in figures}


@pytest.mark.parametrize("name", _mark_slow([*SAMPLES, *LIMITS]))
def test_every_view_opens(page: Page, pages: Path, name: str) -> None:
    path = page_of(pages, name)
    for width, theme in ((1280, "light"), (400, "dark")):
        page.size(width, 800)
        page.scheme(theme)
        page.open(path)
        for place, tab in enumerate(TABS, start=1):
            page.keys(str(place))
            page.settle()
            panel = f"document.querySelector('#panel-{tab}')"
            assert page.js("document.documentElement.scrollWidth") <= width, (tab, width)
            assert page.js(f"{panel}.checkVisibility()"), tab
            assert page.js(f"{panel}.innerText.length") > 10
            assert page.text("#problems") == ""
            assert page.cut_numbers() == [], (tab, width)


@pytest.mark.parametrize("name", _mark_slow(SAMPLES))
def test_a_reader_looks_around(page: Page, pages: Path, name: str) -> None:
    page.open(page_of(pages, name))
    for across in (0.2, 0.5, 0.8):
        page.click_at("#timeline canvas", across, 0.6)
        for place in range(1, len(TABS) + 1):
            page.keys(str(place))
        page.keys("1")
    page.drag("#timeline canvas", 0.4, 0.6)
    page.keys("/", "e")
    page.keys("\ue00c", selector="#panel-tensors .search")
    page.keys("\ue00c", "p", "t", "[", "]")
    page.js("localStorage.clear()")
    if page.js("memoryReport.current().content.table.rows().length"):
        page.click("#panel-tensors tbody tr:nth-child(2) button")
        page.click("#detail .jumps button")
        assert page.text("#panel-lifetimes .note")


@pytest.mark.parametrize("name", [*SAMPLES, *LIMITS])
def test_numbers_are_the_documents(page: Page, pages: Path, name: str) -> None:
    result = result_of(name)
    document = result.document
    page.open(page_of(pages, name), "")
    paths = check_figures(page, document, 12)
    assert {"peak.requested_bytes", "peak.allocated_bytes"} <= paths
    peak = document["peak"]
    recorded = "memoryReport.recording"
    shown = page.js(f"{recorded}.series.map((line) => line[{recorded}.peakState])")
    names = [category.value for category in Category]
    assert dict(zip(names, shown, strict=True)) == document["categories_at_peak"]
    assert page.js(f"{recorded}.total[{recorded}.peakState]") == peak["requested_bytes"]
    at_peak = page.js(f"{recorded}.allocated[{peak['allocated_instant'] + 1}]")
    assert at_peak == peak["allocated_bytes"]
    listed = page.js(
        "(({aliveAt, nameOf, columns, peakState}) => aliveAt(peakState).map((b) =>"
        " [nameOf(b), columns.requested[b], columns.allocated[b]]))(memoryReport.recording)"
    )
    rows = document["tensors_at_peak"]
    expected = [[row["name"], row["requested_bytes"], row["allocated_bytes"]] for row in rows]
    assert sorted(listed) == sorted(expected)
    assert page.js("memoryReport.recording.header.document.ops") == document["ops"]


@pytest.mark.parametrize("name", ["cnn", "oom", "fits"])
def test_the_pool_is_drawn_as_the_document_says(page: Page, pages: Path, name: str) -> None:
    document = result_of(name).document
    page.open(page_of(pages, name))
    changes = document["pool_timeline"]
    assert changes
    for place, change in enumerate(changes):
        state = change["instant"] + 1
        assert page.js(f"memoryReport.recording.pool[{state}]") == change["pool_bytes"]
        if place:
            before = changes[place - 1]["pool_bytes"]
            assert page.js(f"memoryReport.recording.pool[{state - 1}]") == before
    last = page.js("memoryReport.recording.pool[memoryReport.recording.states - 1]")
    assert last == changes[-1]["pool_bytes"]


def test_out_of_memory_is_told_and_drawn(page: Page, pages: Path) -> None:
    document = result_of("oom").document
    failure = document["failure"]
    page.open(page_of(pages, "oom"))
    assert page.text(".verdict h2").startswith("Out of memory: a request for 16.00 MiB failed")
    assert "OOM when allocating" in page.text(".banner-error .line")
    assert document["error"]["message"] in page.text(".banner-error .line")
    assert page.js("memoryReport.recording.failures") == [failure]
    wanted = failure["in_use_bytes"] + failure["requested_bytes"]
    assert wanted > failure["memory_limit_bytes"]
    seen = page.js("memoryReport.axis.visibleStates()")
    assert seen[0] <= failure["instant"] + 1 <= seen[1]


@pytest.mark.parametrize(("name", "words"), [("fits", "the step runs"), ("fails", " fails; ")])
def test_a_replayed_limit_is_told(page: Page, pages: Path, name: str, words: str) -> None:
    document = result_of(name).document
    page.open(page_of(pages, name))
    assert words in page.text(".what-if")
    headline = page.text(".verdict h2")
    assert headline == document["verdict"]["headline"]
    assert headline.startswith("FITS" if name == "fits" else "DOES NOT FIT")
    assert f" of {format_bytes(LIMITS[name])}" in headline
    paths = check_figures(page, document, 12)
    assert {"verdict.need_bytes", "verdict.limit_bytes"} <= paths
    if name == "fits":
        return
    instant = document["what_if"]["failure"]["instant"]
    page.click(".what-if a")
    assert page.js("memoryReport.state.values.at") == instant + 1
    assert page.js(f"memoryReport.recording.replayedPool[{instant + 2}]") is None


def test_two_samples_are_compared(page: Page, pages: Path) -> None:
    path = pages / "diff.html"
    found = analyzer.diff(TRACES / "infer", TRACES / "cnn")
    found.to_html(path)
    for width in (1280, 400):
        page.size(width, 900)
        page.open(path)
        assert page.js("document.documentElement.scrollWidth") <= width
        assert page.js("document.querySelector('table.compare').scrollWidth") <= width
        assert page.cut_numbers() == [], width
    both = {**result_of("cnn").document, "comparison": found.document}
    assert any(path.startswith("comparison.peak") for path in check_figures(page, both, 20))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_notebook_shows_a_summary(page: Page, pages: Path, theme: str) -> None:
    shown = [result_of("cnn"), result_of("oom"), analyzer.diff(TRACES / "infer", TRACES / "cnn")]
    path = pages / "notebook.html"
    cells = "".join(f"<div>{item._repr_html_()}</div>" for item in shown)
    path.write_text(f"<!doctype html><meta charset=utf-8><title>n</title>{cells}", "utf-8")
    page.size(700, 900)
    page.scheme(theme)
    page.driver.get(path.resolve().as_uri())
    page.settle()
    text = page.text("body")
    assert format_bytes(result_of("cnn").peak_bytes) in text
    assert "Out of memory" in text
    assert "grew by" in text
    assert page.js("document.querySelectorAll('script, style, link').length") == 0
    assert page.js("document.documentElement.scrollWidth") <= 700
