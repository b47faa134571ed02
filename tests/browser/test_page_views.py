"""Every view, driven as a reader drives it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from make_recording import Made
from page_driver import Page

from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, empty
from analyzer.report.page import payload

SHIFT = 8
TABS = ("tensors", "lifetimes", "layers", "ops", "map")


def view_span(page: Page) -> float:
    return float(page.js("memoryReport.axis.view[1] - memoryReport.axis.view[0]"))


def at(page: Page) -> int:
    return int(page.js("memoryReport.state.values.at")) - 1


def rows(page: Page) -> int:
    return int(page.js("memoryReport.current().content.table.rows().length"))


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_every_view_opens_without_a_complaint_and_fits_the_width(
    page: Page, report: Path, tab: str, theme: str, width: int
) -> None:
    page.size(width, 800)
    page.scheme(theme)
    page.open(report, f"#tab={tab}")
    page.settle()
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js(f"document.querySelector('#panel-{tab}').innerText.length") > 20
    assert page.js("document.querySelectorAll('[role=tab][aria-selected=true]').length") == 1


def test_the_answer_is_on_the_first_screen(page: Page, report: Path) -> None:
    page.open(report)
    assert page.js("document.querySelector('.answer').getBoundingClientRect().bottom") < 900
    assert "Peak" in page.text(".verdict h2")
    assert page.js("document.querySelectorAll('.answer .finding').length") > 0


def test_a_click_on_an_instant_drives_every_view(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    before = page.text(".summary")
    page.click_at("#timeline canvas", 0.1, 0.5)
    instant = at(page)
    assert instant != made.document["peak"]["instant"]
    assert page.text(".summary") != before
    table = made.recording.allocations
    alive = table[(table["born"] <= instant) & (table["dies"] > instant)]
    assert rows(page) == len(alive)
    for tab in ("layers", "ops", "map"):
        page.click(f"#tab-{tab}")
        page.wait(f"!document.querySelector('#panel-{tab}').hidden")
    page.click("#tab-layers")
    shown = page.js("document.querySelector('#panel-layers [data-sum=bytes] .size').dataset.bytes")
    assert int(shown) == int(alive["requested_bytes"].sum())
    page.click("#tab-ops")
    shown = page.js(
        "document.querySelector('#panel-ops [data-sum=\"alive now\"] .size').dataset.bytes"
    )
    assert int(shown) == int(alive["requested_bytes"].sum())
    page.click("#tab-map")
    shown = page.js("document.querySelector('#panel-map [data-sum=allocated] .size').dataset.bytes")
    assert int(shown) == int(alive["allocated_bytes"].sum())


def test_zoom_by_wheel_drag_buttons_and_keys_and_back(page: Page, report: Path) -> None:
    page.open(report)
    whole = view_span(page)
    page.drag("#timeline canvas", 0.4, 0.6)
    assert view_span(page) < 0.3 * whole
    start = page.js("memoryReport.axis.view[0]")
    page.drag("#timeline canvas", 0.5, 0.3, modifiers=SHIFT)
    assert page.js("memoryReport.axis.view[0]") > start
    assert "from=" in page.js("location.hash")
    page.keys("\ue00c")
    assert view_span(page) == whole
    box = page.box("#timeline canvas")
    page.mouse("mouseWheel", box["x"] + 500, box["y"] + 90, deltaX=0, deltaY=-100)
    page.settle()
    assert view_span(page) == whole, "a wheel that only passes by scrolls the page"
    page.click_at("#timeline canvas", 0.5, 0.5)
    page.js("document.querySelector('#timeline canvas').focus()")
    box = page.box("#timeline canvas")
    page.mouse("mouseWheel", box["x"] + 500, box["y"] + 90, deltaX=0, deltaY=-100)
    page.settle()
    assert view_span(page) < whole
    page.keys("-", "-", "-", "-", selector="#timeline canvas")
    page.keys("+", selector="#timeline canvas")
    assert view_span(page) < whole
    page.drag("#minimap canvas", 0.7, 0.8)
    page.wait("document.querySelector('#timeline-controls')")
    page.click("#timeline-controls button:last-child")
    assert view_span(page) == whole


def test_no_column_hides_a_peak(page: Page, report: Path, made: Made) -> None:
    page.size(400, 800)
    page.open(report)
    highest = page.js("memoryReport.recording.total[memoryReport.recording.highestState]")
    columns = "Array.from({length: 400}, (_, x) => memoryReport.timeline.stateAtX(x))"
    shown = page.js(f"Math.max(...{columns}.map((s) => memoryReport.recording.total[s]))")
    assert shown == highest
    last = made.recording.steps[-1]
    page.js(f"memoryReport.axis.setView({last.first}, {last.last + 2})")
    page.settle()
    shown = page.js(f"Math.max(...{columns}.map((s) => memoryReport.recording.total[s]))")
    assert shown == made.document["peak"]["requested_bytes"]


def test_keys(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    peak = made.document["peak"]["instant"]
    page.keys("[")
    assert at(page) < peak
    page.keys("]")
    assert at(page) == peak
    page.keys("[", "p")
    assert at(page) == peak
    page.keys("\ue012", selector="#timeline canvas")
    assert at(page) == peak - 1
    slider = page.js("document.querySelector('#timeline canvas').getAttribute('aria-valuetext')")
    assert f"instant {peak - 1:,}" in slider
    page.keys("\ue011", selector="#timeline canvas")
    assert at(page) == -1
    page.keys("/")
    assert page.js("document.activeElement.type") == "search"
    page.keys("\ue00c", selector=".search")
    page.keys("?")
    assert page.js("document.querySelector('#help').open")
    page.keys("\ue00c")
    assert not page.js("document.querySelector('#help').open")
    page.keys("2")
    assert page.js("memoryReport.state.values.tab") == "lifetimes"
    page.keys("\ue014", selector="#tab-lifetimes")
    assert page.js("memoryReport.state.values.tab") == "layers"


def test_theme_follows_the_system_and_is_remembered(page: Page, report: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.open(report)
    light = page.js(colour)
    page.scheme("dark")
    dark = page.js(colour)
    assert dark != light
    page.keys("t")
    assert page.js(colour) == light
    time.sleep(0.3)  # the browser writes the storage in its own time
    page.open(report)
    assert page.js(colour) == light
    page.js("localStorage.clear()")


def test_search_sort_filter_and_sum(page: Page, report: Path) -> None:
    page.open(report)
    everything = rows(page)
    page.keys("adam kernel/m", selector="#panel-tensors .search")
    found = rows(page)
    assert 0 < found < everything
    names = page.js(
        "memoryReport.current().content.table.rows().map((b) => memoryReport.recording.nameOf(b))"
    )
    assert all("adam" in name and "kernel/m" in name for name in names)
    shown_sum = page.js(
        "Number(document.querySelector('#panel-tensors [data-sum=requested] .size').dataset.bytes)"
    )
    real_sum = page.js(
        "memoryReport.current().content.table.rows()"
        ".reduce((sum, b) => sum + memoryReport.recording.columns.requested[b], 0)"
    )
    assert shown_sum == real_sum
    page.keys("\ue00c")
    assert rows(page) == everything
    page.js(
        "(() => { const select = document.querySelector('#panel-tensors select');"
        "select.value = 'activation'; select.dispatchEvent(new Event('change')); })()"
    )
    assert 0 < rows(page) < everything
    page.click("#panel-tensors thead th:nth-child(2) button")
    sizes = page.js(
        "memoryReport.current().content.table.rows()"
        ".map((b) => memoryReport.recording.columns.requested[b])"
    )
    assert sizes == sorted(sizes)


def test_csv_holds_exact_bytes_and_no_formula(page: Page, report: Path) -> None:
    page.open(report)
    lines = page.js("memoryReport.current().content.table.csv()").split("\r\n")
    assert lines[0].startswith("Tensor,requested_bytes,allocated_bytes,Category")
    assert len(lines) == rows(page) + 2
    assert int(lines[1].split(",")[1]) == page.js(
        "memoryReport.recording.columns.requested[memoryReport.current().content.table.rows()[0]]"
    )
    page.click("#panel-tensors .controls button")
    page.wait("document.querySelector('#panel-tensors .controls button').innerText !== 'Copy CSV'")


def test_virtual_rows_follow_the_scroll(page: Page, report: Path) -> None:
    page.open(report)
    assert page.js("document.querySelectorAll('#panel-tensors tbody tr').length") < 60
    page.js("document.querySelector('#panel-tensors .scroller').scrollTo(0, 1e7)")
    page.wait(
        f"document.querySelector('#panel-tensors tbody tr[aria-rowindex=\"{rows(page) + 1}\"]')"
    )


def test_a_tensor_can_be_walked_through_the_graph(page: Page, report: Path) -> None:
    page.open(report)
    page.keys("conv3/Conv2D:0", selector="#panel-tensors .search")
    page.click("#panel-tensors tbody tr:nth-child(2) button")
    assert "conv3/Conv2D:0" in page.text("#detail .name")
    assert "conv3/grad" in page.text("#detail")
    page.click("#detail .neighbours li li button")
    assert "conv2/Conv2D:0" in page.text("#detail .name")


def test_layers_can_be_measured_and_grouped_otherwise(page: Page, report: Path) -> None:
    page.open(report, "#tab=layers")
    page.click_at("#panel-layers canvas", 0.3, 0.35)
    assert page.js("memoryReport.current().content.focusName()") != "all"
    for measure in ("activation", "parameter", "bytetime", "instant"):
        page.js(f"memoryReport.state.update({{measure: '{measure}'}})")
        page.settle()
    page.js("memoryReport.state.update({layerMode: 'source'})")
    page.settle()
    assert "model.py" in page.text("#panel-layers")
    page.wait("location.hash.includes('by=source')")


def test_the_address_keeps_the_view(page: Page, report: Path) -> None:
    page.open(report, "#tab=map&at=700&from=600&to=900&buffer=12")
    assert at(page) == 700
    assert page.js("memoryReport.state.values.tab") == "map"
    assert view_span(page) == 300
    assert page.js("memoryReport.state.values.buffer") == 12


@pytest.mark.parametrize(
    "fragment", ["#at=-5&tab=nothing&buffer=99999999", "#at=abc&from=9&to=3", "#%00%ff"]
)
def test_a_broken_address_is_ignored(page: Page, report: Path, fragment: str) -> None:
    page.open(report, fragment)
    assert page.js("memoryReport.state.values.at > 0")


def test_comparison_shows_both(page: Page, comparison_report: Path) -> None:
    page.open(comparison_report)
    text = page.text("#panel-compare")
    assert "predicted" in text
    assert "measured" in text
    first = page.js("memoryReport.current().content.table.rows()[0]")
    assert first["delta_bytes"] == first["b_bytes"] - first["a_bytes"]
    page.js(
        "(() => { const select = document.querySelector('#panel-compare select');"
        "select.value = 'ops'; select.dispatchEvent(new Event('change')); })()"
    )
    page.settle()


def test_charts_are_not_blank(page: Page, report: Path) -> None:
    for tab, panel in (
        ("tensors", "#timeline"),
        ("lifetimes", "#panel-lifetimes"),
        ("layers", "#panel-layers"),
        ("map", "#panel-map"),
    ):
        page.open(report, f"#tab={tab}")
        page.settle()
        colours = page.js(
            "(() => { const canvas = document.querySelector(arguments[0] + ' canvas');"
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
            "const seen = new Set(); for (let i = 0; i < data.length; i += 4 * 7)"
            " seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]); return seen.size; })()",
            panel,
        )
        assert colours > 4, tab


def test_the_axis_of_time_shows_the_same_peak(page: Page, report: Path, made: Made) -> None:
    page.open(report, "#axis=time")
    columns = "Array.from({length: 1300}, (_, x) => memoryReport.timeline.stateAtX(x))"
    shown = page.js(f"Math.max(...{columns}.map((s) => memoryReport.recording.total[s]))")
    assert shown == page.js("memoryReport.recording.total[memoryReport.recording.highestState]")
    page.click_at("#timeline canvas", 0.6, 0.5)
    assert at(page) != made.document["peak"]["instant"]
    page.drag("#timeline canvas", 0.3, 0.4)
    page.keys("\ue00c")
    page.js("memoryReport.state.update({axis: 'events'})")
    page.settle()
    assert view_span(page) == len(made.recording.events) + 1


def test_buffers_that_are_not_listed_still_count(
    page: Page,
    made: Made,
    written: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payload, "MAX_BUFFERS", 50)
    page.open(written(made))
    peak = "memoryReport.recording.peakState"
    shown = page.js(f"memoryReport.recording.series.map((line) => line[{peak}])")
    assert shown == list(made.document["categories_at_peak"].values())
    assert page.js("memoryReport.recording.states") < len(made.recording.events)
    at = page.js("memoryReport.recording.document.peak.allocated_instant") + 1
    peak_bytes = made.document["peak"]["allocated_bytes"]
    assert page.js(f"memoryReport.recording.allocated[{at}]") == peak_bytes
    assert "not in this list" in page.text("#panel-tensors .note")


def test_a_prediction_without_addresses_graph_or_time(
    page: Page, made: Made, written: Callable[..., Path]
) -> None:
    table = made.recording.allocations.assign(address=pd.NA, born_ps=pd.NA, dies_ps=pd.NA)
    table = table.astype({name: column.dtype for name, column in ALLOCATIONS.items()})
    bare = dataclasses.replace(
        made.recording,
        events=empty(EVENTS),
        allocations=table,
        make_graph=None,
        make_tensor_links=None,
        steps=(),
    )
    path = written(Made(bare, {**made.document, "kind": "estimate", "steps": []}))
    for tab in TABS:
        page.open(path, f"#tab={tab}")
    page.open(path, "#tab=map")
    assert "no addresses" in page.text("#panel-map")


def test_nothing_allocated_is_still_a_page(
    page: Page, made: Made, written: Callable[..., Path]
) -> None:
    bare = dataclasses.replace(
        made.recording,
        events=empty(EVENTS),
        allocations=empty(ALLOCATIONS),
        make_graph=None,
        make_tensor_links=None,
        steps=(),
    )
    zero = dict.fromkeys(made.document["categories_at_peak"], 0)
    peak = {**made.document["peak"], "requested_bytes": 0, "allocated_bytes": 0, "instant": -1}
    document = {**made.document, "peak": peak, "categories_at_peak": zero, "findings": []}
    document |= {"ops": [], "tensors_at_peak": [], "steps": []}
    path = written(Made(bare, document))
    for tab in TABS:
        page.open(path, f"#tab={tab}")
        page.click_at("#timeline canvas", 0.5, 0.5)
        page.keys("[", "]", "p", "\ue00c")


def test_paper_is_light(page: Page, report: Path) -> None:
    page.scheme("dark")
    page.open(report)
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.js(colour)
    page.driver.execute_script("dispatchEvent(new Event('beforeprint'));")
    assert page.js(colour) != dark
    page.driver.execute_script("dispatchEvent(new Event('afterprint'));")
    assert page.js(colour) == dark


def test_a_short_step_after_a_long_start_is_shown_first(
    page: Page, made: Made, written: Callable[..., Path]
) -> None:
    steps = (
        dataclasses.replace(made.recording.steps[-1], first=made.document["peak"]["instant"] - 60),
    )
    path = written(Made(dataclasses.replace(made.recording, steps=steps), made.document))
    page.open(path)
    whole = len(made.recording.events) + 1
    assert steps[0].last - steps[0].first < 0.25 * whole
    assert view_span(page) < 0.4 * whole
    assert "from=" not in page.js("location.hash")
    opening = page.js("memoryReport.axis.view")
    page.driver.execute_script("memoryReport.axis.showAll();")
    page.wait("location.hash.includes('from=')")
    assert view_span(page) == whole
    page.keys("\ue00c")
    assert page.js("memoryReport.axis.view") == opening
    page.wait("location.hash === '#' || location.hash === ''")
