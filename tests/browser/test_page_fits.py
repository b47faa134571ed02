"""At every width and in both themes: no number is cut, and nothing that is read moves away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_recording import Made
from page_driver import Page

from analyzer.oom import read_oom_log
from analyzer.oom.log_sections import build_sections
from analyzer.report.render.page_shell import to_page

WIDTHS = (390, 1024, 1600)
THEMES = ("light", "dark")
TABS = ("tensors", "lifetimes", "layers", "ops", "map")


def top_of(page: Page, selector: str) -> float:
    return float(
        page.js("document.querySelector(arguments[0]).getBoundingClientRect().top", selector)
    )


def scroll_to(page: Page, selector: str, top: int) -> None:
    """Scroll the page so that an element is so far below the window's top."""
    page.driver.execute_script(
        "scrollTo(0, scrollY + document.querySelector(arguments[0]).getBoundingClientRect().top"
        " - arguments[1]);",
        selector,
        top,
    )


def choose(page: Page, selector: str, value: str) -> None:
    page.driver.execute_script(
        "const select = document.querySelector(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'));",
        selector,
        value,
    )
    page.settle()


def check_whole(page: Page, width: int) -> None:
    assert page.cut_numbers() == []
    assert page.js("document.documentElement.scrollWidth") <= width


def show(page: Page, **values: Any) -> None:
    page.js("memoryReport.state.update(arguments[0])", values)
    page.settle()
    page.settle()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_cut(page: Page, report: Path, width: int, theme: str) -> None:
    page.size(width, 900)
    page.scheme(theme)
    page.open(report)
    for buffer in (None, 12):
        for tab in TABS:
            show(page, tab=tab, buffer=buffer)
            page.driver.execute_script(
                "for (const it of document.querySelectorAll('details')) it.open = true;"
            )
            page.settle()
            page.settle()
            check_whole(page, width)
    assert page.js("document.querySelectorAll('.finding tbody .num').length") > 0


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_of_a_comparison_is_cut(page: Page, comparison_report: Path, width: int) -> None:
    page.size(width, 900)
    page.open(comparison_report)
    check_whole(page, width)
    page.driver.execute_script("document.documentElement.classList.remove('js');")
    page.settle()
    check_whole(page, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_far_down_a_table_have_their_room(page: Page, report: Path, width: int) -> None:
    page.size(width, 900)
    page.open(report)
    for place in (400, 4000, 1e7):
        page.js(f"document.querySelector('#panel-tensors .scroller').scrollTo(0, {place})")
        page.settle()
        check_whole(page, width)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tab", ["tensors", "map"])
def test_a_chosen_row_stays_and_its_pane_is_in_view(
    page: Page, report: Path, tab: str, width: int
) -> None:
    page.size(width, 900)
    page.open(report, f"#tab={tab}")
    page.settle()
    row = f"#panel-{tab} tbody tr[aria-rowindex='4']"
    scroll_to(page, row, 300)
    before = top_of(page, row)
    left = page.js("document.querySelector(arguments[0]).getBoundingClientRect().left", row)
    page.mouse("mouseMoved", left + 40, before + 12)
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, left + 40, before + 12, button="left", clickCount=1)
    page.wait("!document.querySelector('#detail').hidden")
    page.settle()
    assert abs(top_of(page, row) - before) <= 1
    picked = f"document.querySelector('#panel-{tab} tr.picked').getAttribute('aria-rowindex')"
    assert page.js(picked) == "4"
    pane = page.js("document.querySelector('#detail').getBoundingClientRect().toJSON()")
    assert 0 <= pane["left"] < pane["right"] <= width
    assert 0 <= pane["top"] < 860
    place = page.js("getComputedStyle(document.querySelector('#detail')).position")
    assert place == ("fixed" if width < 980 else "sticky")
    assert pane["bottom"] <= 900 or place == "sticky"
    page.click("#detail .detail-head button")
    assert page.js("document.querySelector('#detail').hidden")
    assert abs(top_of(page, row) - before) <= 1


def test_a_row_that_the_sheet_would_cover_comes_above_it(page: Page, report: Path) -> None:
    page.size(390, 900)
    page.open(report)
    row = "#panel-tensors tbody tr[aria-rowindex='6']"
    scroll_to(page, row, 800)
    page.js("document.querySelector(arguments[0] + ' button').click()", row)
    page.wait("!document.querySelector('#detail').hidden")
    page.settle()
    assert page.js(
        "document.querySelector('tr.picked').getBoundingClientRect().bottom"
        " <= document.querySelector('#detail').getBoundingClientRect().top"
    )


def test_the_chosen_tensor_is_marked_in_every_view(page: Page, report: Path) -> None:
    page.open(report)
    smallest = page.js(
        "(({aliveAt, columns: {requested}, peakState}) => aliveAt(peakState)"
        ".reduce((least, b) => (requested[b] < requested[least] ? b : least)))"
        "(memoryReport.recording)"
    )
    show(page, tab="lifetimes", buffer=smallest)
    assert smallest in page.js("memoryReport.current().content.rows()")
    assert "is marked" in page.text("#panel-lifetimes .note")
    show(page, tab="tensors")
    assert page.js("document.querySelectorAll('#panel-tensors tr.picked').length") == 1
    show(page, tab="map")
    page.wait("document.querySelectorAll('#panel-map tr.picked').length <= 1")


def test_escape_and_reset_go_back_to_how_the_page_opens(page: Page, report: Path) -> None:
    for leave in ("Escape", "Reset"):
        page.open(report)
        opening = page.js("[memoryReport.axis.view, memoryReport.state.values.at]")
        page.keys("conv3", selector="#panel-tensors .search")
        page.click("#panel-tensors tbody tr:nth-child(2) button")
        page.click("#panel-tensors thead th:nth-child(2) button")
        page.drag("#timeline canvas", 0.4, 0.6)
        page.click_at("#timeline canvas", 0.2, 0.5)
        assert page.js("[memoryReport.axis.view, memoryReport.state.values.at]") != opening
        if leave == "Escape":
            page.keys("\ue00c")
        else:
            page.click("#timeline-controls button:last-child")
        assert page.js("[memoryReport.axis.view, memoryReport.state.values.at]") == opening
        assert page.js("memoryReport.state.values.buffer") is None
        assert page.js("document.querySelector('#panel-tensors .search').value") == ""
        page.wait("location.hash === '' || location.hash === '#'")


def test_search_order_and_filters_are_in_the_address(page: Page, report: Path) -> None:
    page.open(report)
    page.keys("conv", selector="#panel-tensors .search")
    page.click("#panel-tensors thead th:nth-child(1) button")
    choose(page, "#panel-tensors select[aria-label=category]", "activation")
    page.wait("location.hash.includes('f.category=activation')")
    fragment = page.js("location.hash")
    assert "q=conv" in fragment
    assert "sort=name" in fragment
    rows = page.js("memoryReport.current().content.table.rows()")
    page.open(report, fragment)
    page.settle()
    assert page.js("memoryReport.current().content.table.rows()") == rows
    assert page.js("document.querySelector('#panel-tensors .search').value") == "conv"
    chosen = "document.querySelector('#panel-tensors select[aria-label=category]').value"
    assert page.js(chosen) == "activation"


def test_a_changed_address_is_followed(page: Page, report: Path) -> None:
    page.open(report)
    page.driver.execute_script(
        "location.hash = '#tab=ops&at=700&from=600&to=900&q=conv1&buffer=12';"
    )
    page.wait("memoryReport.state.values.tab === 'ops' && memoryReport.state.values.at === 701")
    page.wait("document.querySelector('#panel-ops .search')?.value === 'conv1'")
    assert page.js("memoryReport.axis.view") == [600, 900]
    assert page.js("memoryReport.state.values.buffer") == 12
    page.js("new Promise((done) => setTimeout(done, 400))")  # the page's own address is written
    page.driver.execute_script("history.back();")
    page.wait("memoryReport.state.values.tab === 'tensors'")
    page.wait("memoryReport.state.values.buffer === null")


@pytest.mark.parametrize("axis", ["events", "time"])
def test_an_address_that_is_opened_again_stays_the_same(
    page: Page, report: Path, axis: str
) -> None:
    page.open(report, f"#axis={axis}")
    page.drag("#timeline canvas", 0.313, 0.597)
    page.wait("location.hash.includes('to=')")
    page.js("new Promise((done) => setTimeout(done, 400))")
    fragment = page.js("location.hash")
    for _ in range(3):
        page.open(report, fragment)
        page.js("memoryReport.state.touch('choices')")
        page.settle()
        page.js("new Promise((done) => setTimeout(done, 400))")
        assert page.js("location.hash") == fragment


def test_the_axis_of_time_keeps_the_part_in_view(page: Page, report: Path) -> None:
    page.open(report, "#from=600&to=900")
    show(page, axis="time")
    assert page.js("memoryReport.axis.viewStates()") == [600, 900]
    show(page, axis="events")
    assert page.js("memoryReport.axis.view") == [600, 900]


def test_the_choice_of_a_step_stays(page: Page, report: Path) -> None:
    page.open(report)
    select = "document.querySelector('#timeline-controls select')"
    choose(page, "#timeline-controls select", "1")
    assert page.js(f"{select}.value") == "1"
    show(page, at=100)
    assert page.js(f"{select}.value") == "1"
    page.js("memoryReport.axis.zoom(0.5)")
    page.settle()
    assert page.js(f"{select}.selectedOptions[0].text") == "part in view"
    page.js("memoryReport.axis.showAll()")
    page.settle()
    assert page.js(f"{select}.selectedOptions[0].text") == "All steps"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_saving_leaves_the_title_of_a_change_free(page: Page, report: Path, width: int) -> None:
    page.size(width, 900)
    page.open(report)
    page.js("document.querySelector('.saves').textContent = 'saves 1023.99 MiB'")
    page.settle()
    saves, title = page.box(".saves"), page.box(".finding summary .text")
    assert page.js("document.querySelector('.saves').scrollWidth") <= saves["width"] + 1
    assert saves["x"] + saves["width"] <= title["x"]


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_of_the_timeline_do_not_overlap(page: Page, report: Path, width: int) -> None:
    page.size(width, 900)
    page.open(report)
    for apart in (1, 3, 40):
        page.js(
            "(({recording, timeline}) => {"
            "recording.peakState = Math.max(0, recording.highestState - arguments[0]);"
            "timeline.chart.redraw(); })(memoryReport)",
            apart,
        )
        page.settle()
        labels = page.js("memoryReport.timeline.labels()")
        texts = [label["text"] for label in labels]
        assert any(text.startswith("peak ") for text in texts)
        assert any(text.startswith("highest ") for text in texts)
        for place, one in enumerate(labels):
            for other in labels[place + 1 :]:
                assert (
                    one["right"] <= other["left"]
                    or other["right"] <= one["left"]
                    or one["bottom"] <= other["top"]
                    or other["bottom"] <= one["top"]
                ), (one, other)


def test_the_next_command_breaks_between_its_words(page: Page, tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "unit" / "oom" / "logs" / "gpu_conv.log.gz"
    with log.open("rb") as stream:
        document = build_sections(read_oom_log(stream, "log").document, ())
    path = tmp_path / "oom.html"
    path.write_text(to_page(document), encoding="utf-8")
    page.size(390, 900)
    page.driver.get(path.as_uri())
    heights = page.js("[...document.querySelectorAll('.next span')].map((one) => one.offsetHeight)")
    assert len(heights) > 5
    assert max(heights) == min(heights)
    assert (
        page.js("document.querySelector('.next code').innerText").strip() == document.next_command
    )
    assert page.js("document.documentElement.scrollWidth") <= 390


BLOCKS = ("stem", "block1a", "block2a", "block2b", "block3a", "block3b", "top")
PARTS = ("expand_conv", "expand_bn", "se_reduce", "project_conv", "project_bn", "add")


def test_layers_are_gathered_by_block_in_the_order_of_the_model(
    page: Page, made: Made, written: Callable[..., Path]
) -> None:
    table = made.recording.allocations
    old = [name for name in dict.fromkeys(table["layer"].dropna()) if name]
    new = {
        name: f"{BLOCKS[place * len(BLOCKS) // len(old)]}_{PARTS[place % len(PARTS)]}_{place}"
        for place, name in enumerate(old)
    }
    layers = table["layer"].cat.rename_categories(new)
    renamed = dataclasses.replace(made.recording, allocations=table.assign(layer=layers))
    page.size(1280, 900)
    page.open(written(Made(renamed, made.document)), "#tab=layers")
    page.settle()
    boxes = page.js(
        "memoryReport.current().content.boxes()"
        ".map(({node, w, depth, text}) => ({key: node.key, w, depth, text}))"
    )
    first = [box["key"] for box in boxes if box["depth"] == 1]
    expected = ["block1a", "block2a", "block2b", "block3a", "block3b"]
    assert [key for key in first if key in expected] == expected
    for depth, least in ((1, 0.8), (2, 0.4)):
        level = [box for box in boxes if box["depth"] == depth]
        labelled = sum(box["w"] for box in level if box["text"])
        assert labelled >= least * sum(box["w"] for box in level), depth
    shown = page.js(
        "memoryReport.current().content.boxes().filter(({node}) => node.children.length === 0)"
        ".map(({node}) => node.key)"
    )
    variables = set(table["variable"].dropna()) - {""}
    assert variables & set(shown), "variables are called by their names"
    assert "zeros" not in shown
    page.click("#panel-layers .scroller tbody tr:nth-child(2) button")
    page.wait("location.hash.includes('part=')")
    chosen = page.js("memoryReport.current().content.focusName()")
    fragment = page.js("location.hash")
    page.open(written(Made(renamed, made.document)), fragment)
    page.settle()
    assert page.js("memoryReport.current().content.focusName()") == chosen
