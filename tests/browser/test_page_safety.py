"""Names that would be markup or script are text, and the page asks nothing of any network."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_name import HOSTILE
from page_driver import Page

TABS = ("compare", "tensors", "lifetimes", "layers", "ops", "map")


@pytest.mark.parametrize("tab", TABS)
def test_hostile_names_run_nothing(page: Page, hostile_report: Path, tab: str) -> None:
    page.open(hostile_report, f"#tab={tab}&buffer=40")
    page.keys("?", "\ue00c")
    page.click_at("#timeline canvas", 0.6, 0.8)
    assert page.js("window.hacked") is None
    assert (
        page.js(
            "document.querySelectorAll('main img:not(.printed), main iframe, main script').length"
        )
        == 0
    )
    assert page.js("document.querySelectorAll('script').length") == 3
    assert page.js("document.documentElement.scrollWidth") <= 1280


def test_a_hostile_name_can_be_read_whole(page: Page, hostile_report: Path) -> None:
    page.open(hostile_report, "#tab=tensors")
    expected = HOSTILE.replace("\r", "\n")
    assert page.js("document.querySelector('.banner-error .text').textContent") == expected
    page.keys("conv3", selector="#panel-tensors .search")
    page.click("#panel-tensors tbody tr:nth-child(2) button")
    assert HOSTILE in page.js("document.querySelector('#detail .name').textContent")


def test_the_policy_refuses_foreign_script_and_requests(page: Page, report: Path) -> None:
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
