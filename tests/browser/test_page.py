"""The report page in a browser, driven as a reader drives it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pandas as pd
import pytest
from builders import opened_sample, sample_folder
from byte_cases import CASES
from hostile_name import HOSTILE
from make_recording import Made
from page_driver import Page

import analyzer
from analyzer.model.contract.child_messages import WhatIf
from analyzer.model.contract.report_file import ReportFile
from analyzer.model.graph.graph_index import NO_GRAPH
from analyzer.model.recording.records import ALLOCATIONS, EVENTS
from analyzer.model.units import format_bytes
from analyzer.report.page import build
from analyzer.report.result import Result
from analyzer.session.opening import open_result

TABS = ("tensors", "lifetimes", "layers", "ops", "map")
RECORDED = "memoryReport.recording"
TABLE = "memoryReport.current().content.table"
ESCAPE = "\ue00c"
SHIFT = 8


def instant_of(page: Page) -> int:
    return int(page.js("memoryReport.state.values.at")) - 1


def span_of(page: Page) -> float:
    return float(page.js("memoryReport.axis.view[1] - memoryReport.axis.view[0]"))


def choose(page: Page, selector: str, value: str) -> None:
    page.driver.execute_script(
        "const select = document.querySelector(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'));",
        selector,
        value,
    )
    page.settle()


def check_figures(page: Page, document: dict[str, Any], least: int) -> set[str]:
    """Check that each size on the page is the document's; return their places in it."""
    figures = page.js(
        "[...document.querySelectorAll('[data-path]')]"
        ".map((it) => [it.dataset.path, Number(it.dataset.bytes), it.textContent, it.title])"
    )
    assert len(figures) >= least
    for path, size_bytes, text, title in figures:
        value: Any = document
        for key in path.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        assert (size_bytes, text) == (value, format_bytes(value)), path
        assert title in ("", f"{value:,} bytes")
    return {path for path, *_ in figures}


def check_recording(page: Page, document: dict[str, Any]) -> None:
    """Check that the page's sums over all buffers agree with the document."""
    peak = document["peak"]
    shown = page.js(f"{RECORDED}.series.map((line) => line[{RECORDED}.peakState])")
    assert shown == list(document["categories_at_peak"].values())
    assert page.js(f"{RECORDED}.total[{RECORDED}.peakState]") == peak["requested_bytes"]
    at = page.js(f"{RECORDED}.document.peak.allocated_instant") + 1
    assert page.js(f"{RECORDED}.allocated[{at}]") == peak["allocated_bytes"]


def open_sample(name: str) -> Result:
    if name == "replayed":
        limit = WhatIf(memory_limit_bytes=8 << 20)
        return open_result(sample_folder("transformer"), what_if=limit)
    return opened_sample(name)


@pytest.mark.parametrize("name", ["oom", "replayed"])
def test_the_page_of_a_sample_shows_its_document(
    page: Page, name: str, tmp_path: Path
) -> None:
    result, path = open_sample(name), tmp_path / "report.html"
    document = result.document
    result.to_html(path)
    page.open(path)
    paths = check_figures(page, document, 3)  # a failed step has no need
    assert "peak.requested_bytes" in paths
    check_recording(page, document)
    listed = page.js(
        "(({aliveAt, nameOf, columns, peakState}) => aliveAt(peakState).map((b) =>"
        f" [nameOf(b), columns.requested[b], columns.allocated[b]]))({RECORDED})"
    )
    sizes = ("name", "requested_bytes", "allocated_bytes")
    rows = [[row[key] for key in sizes] for row in document["tensors_at_peak"]]
    assert sorted(listed) == sorted(rows)
    assert page.js(f"{RECORDED}.header.document.ops") == document["ops"]
    for change in document["pool_timeline"]:
        assert (
            page.js(f"{RECORDED}.pool[{change['instant'] + 1}]") == change["pool_bytes"]
        )
    for width, theme in ((1280, "light"), (390, "dark")):
        page.size(width, 800)
        page.scheme(theme)
        page.open(path)
        for place, tab in enumerate(TABS, start=1):
            page.keys(str(place))
            page.settle()
            assert page.js("document.documentElement.scrollWidth") <= width, (
                tab,
                width,
            )
            assert (
                page.js(f"document.querySelector('#panel-{tab}').innerText.length") > 10
            )
            assert page.text("#problems") == ""
            assert page.cut_numbers() == [], (tab, width)


def test_out_of_memory_and_a_replay_are_told_and_drawn(
    page: Page, tmp_path: Path
) -> None:
    failed, replayed = open_sample("oom"), open_sample("replayed")
    failed.to_html(tmp_path / "oom.html")
    replayed.to_html(tmp_path / "replayed.html")
    page.open(tmp_path / "oom.html")
    failure = failed.document["failure"]
    assert failed.document["error"]["message"] in page.text(".banner-error .line")
    assert page.js(f"{RECORDED}.failures") == [failure]
    seen = page.js("memoryReport.axis.visibleStates()")
    assert seen[0] <= failure["instant"] + 1 <= seen[1]
    page.open(tmp_path / "replayed.html")
    assert page.text(".verdict h2") == replayed.document["verdict"]["headline"]
    page.click(".what-if a")
    instant = replayed.document["what_if"]["failure"]["instant"]
    assert instant_of(page) == instant
    assert page.js(f"{RECORDED}.replayedPool[{instant + 2}]") is None


def test_two_steps_are_compared(page: Page, tmp_path: Path) -> None:
    found = analyzer.diff(sample_folder("infer"), sample_folder("cnn"))
    found.to_html(tmp_path / "diff.html")
    for width in (390, 1280):
        page.size(width, 900)
        page.open(tmp_path / "diff.html")
        assert page.js("document.documentElement.scrollWidth") <= width
        assert page.cut_numbers() == [], width
    both = {**open_sample("cnn").document, "comparison": found.document}
    assert any(
        path.startswith("comparison.peak") for path in check_figures(page, both, 20)
    )
    choose(page, "#panel-compare select", "ops")
    first = page.js(f"{TABLE}.rows()[0]")
    assert first["delta_bytes"] == first["b_bytes"] - first["a_bytes"]


def test_an_instant_drives_every_view(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    before = page.text(".summary")
    page.click_at("#timeline canvas", 0.1, 0.5)
    instant = instant_of(page)
    assert instant != made.document["peak"]["instant"]
    assert page.text(".summary") != before
    table = made.recording.allocations
    alive = table[(table["born"] <= instant) & (table["dies"] > instant)]
    assert page.js(f"{TABLE}.rows().length") == len(alive)
    for tab, name, column in (
        ("layers", "bytes", "requested_bytes"),
        ("ops", "alive now", "requested_bytes"),
        ("map", "allocated", "allocated_bytes"),
    ):
        page.click(f"#tab-{tab}")
        size = f"document.querySelector('#panel-{tab} [data-sum=\"{name}\"] .size').dataset.bytes"
        assert int(page.js(size)) == int(alive[column].sum()), tab


def test_the_timeline_zooms_and_shows_each_peak(
    page: Page, report: Path, made: Made
) -> None:
    page.open(report)
    whole = span_of(page)
    page.drag("#timeline canvas", 0.4, 0.6)
    assert span_of(page) < 0.3 * whole
    start = page.js("memoryReport.axis.view[0]")
    page.drag("#timeline canvas", 0.5, 0.3, modifiers=SHIFT)
    assert page.js("memoryReport.axis.view[0]") > start
    page.keys(ESCAPE)
    assert span_of(page) == whole
    page.keys("+", selector="#timeline canvas")
    assert span_of(page) < whole
    page.js("memoryReport.axis.showAll()")
    columns = "Array.from({length: 1300}, (_, x) => memoryReport.timeline.stateAtX(x))"
    highest = f"Math.max(...{columns}.map((s) => {RECORDED}.total[s]))"
    for axis in ("events", "time"):
        page.js("memoryReport.state.update({axis: arguments[0]})", axis)
        page.settle()
        assert page.js(highest) == page.js(f"{RECORDED}.total[{RECORDED}.highestState]")
    page.js("memoryReport.state.update({axis: 'events'})")
    page.settle()
    last = made.recording.steps[-1]
    page.js(f"memoryReport.axis.setView({last.first}, {last.last + 2})")
    page.settle()
    assert page.js(highest) == made.document["peak"]["requested_bytes"]
    in_use = made.recording.events["in_use_bytes"].tolist()
    assert page.js(f"Array.from({RECORDED}.allocated).slice(1)") == in_use


def test_keys_move_and_help(page: Page, report: Path, made: Made) -> None:
    page.open(report)
    peak = made.document["peak"]["instant"]
    page.keys("\ue012", selector="#timeline canvas")
    assert instant_of(page) == peak - 1
    page.keys("\ue011", selector="#timeline canvas")
    assert instant_of(page) == -1
    page.keys("p")
    assert instant_of(page) == peak
    page.keys("/")
    assert page.js("document.activeElement.type") == "search"
    page.keys(ESCAPE, selector=".search")
    page.keys("?")
    assert page.js("document.querySelector('#help').open")
    page.keys(ESCAPE)
    page.keys("2")
    assert page.js("memoryReport.state.values.tab") == "lifetimes"
    page.keys("\ue014", selector="#tab-lifetimes")
    assert page.js("memoryReport.state.values.tab") == "layers"


def test_tables_search_sort_filter_sum_and_copy(page: Page, report: Path) -> None:
    page.open(report)
    sizes = f"{TABLE}.rows().map((b) => {RECORDED}.columns.requested[b])"
    everything = page.js(f"{TABLE}.rows().length")
    page.keys("adam kernel/m", selector="#panel-tensors .search")
    names = page.js(f"{TABLE}.rows().map((b) => {RECORDED}.nameOf(b))")
    assert 0 < len(names) < everything
    assert all("adam" in name and "kernel/m" in name for name in names)
    shown = page.js(
        "Number(document.querySelector('#panel-tensors [data-sum=requested] .size').dataset.bytes)"
    )
    assert shown == sum(page.js(sizes))
    page.keys(ESCAPE)
    choose(page, "#panel-tensors select", "activation")
    assert 0 < page.js(f"{TABLE}.rows().length") < everything
    page.click("#panel-tensors thead th:nth-child(2) button")
    assert page.js(sizes) == sorted(page.js(sizes))
    lines = page.js(f"{TABLE}.csv()").split("\r\n")
    assert lines[0].startswith("Tensor,requested_bytes,allocated_bytes,Category")
    assert int(lines[1].split(",")[1]) == page.js(sizes)[0]
    page.open(report)
    assert page.js("document.querySelectorAll('#panel-tensors tbody tr').length") < 60
    page.js("memoryReport.state.update({isSmallShown: true})")
    page.settle()
    page.js("document.querySelector('#panel-tensors .scroller').scrollTo(0, 1e7)")
    page.wait(f"document.querySelector('tbody tr[aria-rowindex=\"{everything + 1}\"]')")
    assert page.js(
        "arguments[0].map((size) => memoryReport.formatBytes(size))", CASES
    ) == [format_bytes(size) for size in CASES]


def test_a_chosen_tensor_stays_in_view(page: Page, report: Path) -> None:
    for width in (390, 1280):
        page.size(width, 900)
        page.open(report)
        page.keys("conv3/Conv2D:0", selector="#panel-tensors .search")
        page.click("#panel-tensors tbody tr:nth-child(2) button")
        assert "conv3/grad" in page.text("#detail")
        pane = page.js(
            "document.querySelector('#detail').getBoundingClientRect().toJSON()"
        )
        assert 0 <= pane["left"] < pane["right"] <= width
        page.js("document.querySelector('#detail .jumps button').click()")
        page.settle()
        assert page.text("#panel-lifetimes .note")


def test_layers_are_grouped_by_source_line(page: Page, report: Path) -> None:
    page.open(report, "#tab=layers")
    page.click_at("#panel-layers canvas", 0.3, 0.35)
    assert page.js("memoryReport.state.values.part")
    page.js("memoryReport.state.update({layerMode: 'source'})")
    page.settle()
    assert "model.py" in page.text("#panel-layers")


def test_a_window_holds_what_was_allocated_in_it(
    page: Page, report: Path, made: Made
) -> None:
    page.open(report)
    choose(page, "#timeline-controls select[aria-label='What a drag does']", "window")
    whole = span_of(page)
    page.drag("#timeline canvas", 0.3, 0.6)
    assert span_of(page) == whole
    first, last = (state - 1 for state in page.js("memoryReport.state.values.window"))
    assert instant_of(page) == last

    table = made.recording.allocations
    born = table[(table["born"] > first) & (table["born"] <= last)]
    living = born[born["dies"] > last]
    sizes = [int(rows["requested_bytes"].sum()) for rows in (born, living)]
    text = page.text("#instant .event")
    assert f"{len(born):,} allocated buffers ({format_bytes(sizes[0])})" in text
    assert f"{len(living):,} live at the end ({format_bytes(sizes[1])})" in text

    for tab, name in (
        ("tensors", "requested"),
        ("layers", "bytes"),
        ("ops", "alive now"),
    ):
        page.click(f"#tab-{tab}")
        size = f"document.querySelector('#panel-{tab} [data-sum=\"{name}\"] .size').dataset.bytes"
        assert int(page.js(size)) == sizes[1], tab

    page.keys("p")
    page.settle()
    assert page.js("memoryReport.state.values.window") is None


@pytest.mark.parametrize("tab", TABS)
def test_a_hovered_item_is_marked_in_every_view(
    page: Page, report: Path, tab: str
) -> None:
    page.open(report, f"#tab={tab}")
    marked = "memoryReport.state.values.marked"
    image = "document.querySelector('#timeline canvas.above').toDataURL()"
    clean = page.js(image)
    is_chart = tab in ("lifetimes", "layers")
    row = "tbody tr:nth-child(2)"
    if tab == "map":
        page.keys("conv", selector="#panel-map .search")  # no gap has this name
    box = page.box(f"#panel-{tab} {'canvas' if is_chart else row}")
    page.mouse(
        "mouseMoved", box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"]
    )
    page.settle()
    page.settle()
    assert page.js(f"{marked}.length") > 0
    assert page.js(image) != clean
    rows = f"document.querySelectorAll('#panel-{tab} tr.marked').length"
    assert tab == "lifetimes" or page.js(rows) > 0
    page.mouse("mouseMoved", 5, 5)
    page.settle()
    assert page.js(marked) is None


def test_a_category_of_the_timeline_marks_its_rows(page: Page, report: Path) -> None:
    page.open(report)
    page.click("#tab-tensors")
    box = page.box("#timeline canvas")
    at = page.js(
        "memoryReport.axis.xOfState(memoryReport.recording.peakState, arguments[0])",
        box["width"],
    )
    page.mouse("mouseMoved", box["x"] + at, box["y"] + 0.5 * box["height"])
    page.settle()
    page.settle()
    codes = page.js(
        f"memoryReport.state.values.marked.map((b) => {RECORDED}.columns.category[b])"
    )
    assert len(set(codes)) == 1


def test_small_rows_are_shown_on_request(page: Page, report: Path) -> None:
    page.open(report)
    height = "document.querySelector('#panel-tensors tbody').offsetHeight"
    button = (
        "[...document.querySelectorAll('#panel-tensors .controls button')]"
        ".find((it) => it.textContent.includes('0.1 %'))"
    )
    sums, before = page.text(".summary"), page.js(height)
    hidden = page.js(
        f"(({{columns, total}}, at) => {TABLE}.rows()"
        ".filter((b) => columns.requested[b] < total[at] / 1000).length)"
        f"({RECORDED}, memoryReport.state.values.at)"
    )
    assert f"Show {hidden:,} below" in page.js(f"{button}.textContent")
    page.js(f"{button}.click()")
    page.settle()
    assert page.js(height) == before + 26 * hidden
    assert page.text(".summary") == sums


def test_choices_are_remembered(page: Page, report: Path) -> None:
    page.open(report)
    chosen = {
        "axis": "time",
        "drag": "window",
        "layerMode": "source",
        "isSmallShown": True,
    }
    page.js("memoryReport.state.update(arguments[0])", chosen)
    page.settle()
    page.open_until(report, "memoryReport.state.values.drag === 'window'")
    shown = page.js("memoryReport.state.values")
    assert {name: shown[name] for name in chosen} == chosen
    assert page.js("memoryReport.axis.isTime()")


def test_charts_and_the_timeline_are_saved(
    page: Page, report: Path, made: Made
) -> None:
    page.open(report)
    page.js(
        "window.saved = [], URL.createObjectURL = (blob) => { saved.push(blob); return 'data:,'; }"
    )
    for name in ("PNG", "SVG", "CSV"):
        page.js(
            "[...document.querySelectorAll('#timeline-controls button')]"
            ".find((it) => it.textContent === arguments[0]).click()",
            name,
        )
    page.wait("saved.length === 3")
    texts = page.driver.execute_async_script(
        "const done = arguments[0]; const order = saved.toSorted((a, b) => (a.type < b.type ? -1 : 1));"
        "Promise.all(order.map((blob) => blob.text())).then(done);"
    )
    png, svg, csv = texts
    assert png[1:4] == "PNG"

    drawing = ElementTree.fromstring(svg)
    words = "".join(drawing.itertext())
    assert f"peak {format_bytes(made.document['peak']['requested_bytes'])}" in words

    head, *lines = csv.split()
    first = head.split(",")
    rows = [dict(zip(first, line.split(","), strict=True)) for line in lines]
    at_peak = next(
        row for row in rows if int(row["instant"]) == made.document["peak"]["instant"]
    )
    assert int(at_peak["requested_bytes"]) == made.document["peak"]["requested_bytes"]
    for name, size in made.document["categories_at_peak"].items():
        assert int(at_peak.get(f"{name}_bytes", 0)) == size


@pytest.mark.parametrize("tab", ["lifetimes", "layers", "map"])
def test_each_chart_is_a_valid_drawing(page: Page, report: Path, tab: str) -> None:
    page.open(report, f"#tab={tab}")
    page.js(
        "window.saved = [], URL.createObjectURL = (blob) => { saved.push(blob); return 'data:,'; }"
    )
    page.js(
        f"[...document.querySelectorAll('#panel-{tab} .chart-file')]"
        ".find((it) => it.textContent === 'SVG').click()"
    )
    svg = page.driver.execute_async_script(
        "const done = arguments[0]; saved[0].text().then(done);"
    )
    drawn = ElementTree.fromstring(svg)
    assert len(list(drawn.iter())) > 5


def test_the_theme_is_the_systems_and_paper_is_light(page: Page, report: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.open(report)
    light = page.js(colour)
    page.scheme("dark")
    dark = page.js(colour)
    assert dark != light
    page.driver.execute_script("dispatchEvent(new Event('beforeprint'));")
    assert page.js(colour) != dark
    page.driver.execute_script("dispatchEvent(new Event('afterprint'));")
    page.keys("t")
    assert page.js(colour) == light
    page.open_until(report, f"{colour} === '{light}'")
    page.js("localStorage.clear()")


def test_buffers_that_are_not_listed_still_count(
    page: Page,
    made: Made,
    written: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "MAX_BUFFERS", 50)
    page.open(written(made))
    check_recording(page, made.document)
    assert page.js(f"{RECORDED}.states") < len(made.recording.events)
    assert "not in this list" in page.text("#panel-tensors .note")


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_recording_may_lack_nearly_everything(
    page: Page, made: Made, written: Callable[..., Path], is_empty: bool
) -> None:
    table = made.recording.allocations.assign(address=None, born_ps=None, dies_ps=None)
    table = table.astype(ALLOCATIONS)
    bare = dataclasses.replace(
        made.recording,
        events=pd.DataFrame(columns=list(EVENTS)).astype(EVENTS),
        allocations=table.iloc[:0] if is_empty else table,
        structure=NO_GRAPH,
        steps=(),
    )
    document = {**made.document, "kind": "estimate", "steps": []}
    if is_empty:
        zero = {"requested_bytes": 0, "allocated_bytes": 0, "instant": -1}
        document["peak"] = {**document["peak"], **zero}
        document["categories_at_peak"] = {}
        document |= {"findings": [], "ops": [], "tensors_at_peak": [], "layers": []}
    path = written(Made(bare, msgspec.convert(document, ReportFile)))
    for tab in TABS:
        page.open(path, f"#tab={tab}")
        page.click_at("#timeline canvas", 0.5, 0.5)
        page.keys("p", ESCAPE)
    page.open(path, "#tab=map")
    assert is_empty or "no addresses" in page.text("#panel-map")


def test_hostile_names_run_nothing(page: Page, hostile_report: Path) -> None:
    foreign = "main img:not(.printed), main iframe, main script"
    for tab in ("compare", *TABS):
        page.open(hostile_report, f"#tab={tab}")
        page.js("memoryReport.state.update({buffer: 40})")
        page.click_at("#timeline canvas", 0.6, 0.8)
        assert page.js("window.hacked") is None
        assert page.js("document.querySelectorAll(arguments[0]).length", foreign) == 0
        assert page.js("document.querySelectorAll('script').length") == 3
        assert page.js("document.documentElement.scrollWidth") <= 1280
    page.open(hostile_report, "#tab=tensors")
    shown = page.js("document.querySelector('.banner-error .text').textContent")
    assert shown == HOSTILE.replace("\r", "\n")


def test_the_policy_refuses_foreign_script_and_requests(
    page: Page, report: Path
) -> None:
    page.open(report)
    page.driver.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.hacked = 1';"
        "document.body.append(script);"
    )
    assert page.js("window.hacked") is None
    refused = page.driver.execute_async_script(
        "const done = arguments[0];"
        "fetch('http://127.0.0.1:9/').then(() => done('sent'), () => done('refused'));"
    )
    assert refused == "refused"
    complaints = page.complaints()
    assert complaints
    assert all("Content Security Policy" in line for line in complaints)
