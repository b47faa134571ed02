"""One browser for all tests of the page; each test fails on anything in its console or network log."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit" / "report")]

from hostile_name import HOSTILE  # noqa: E402
from make_recording import Made, make_recording  # noqa: E402
from page_driver import Page, browser, missing  # noqa: E402

from analyzer.explain.comparison import compare  # noqa: E402
from analyzer.model.contract.report_file import ReportFile  # noqa: E402
from analyzer.model.contract.run_note import Failure  # noqa: E402
from analyzer.model.recording.records import Kind  # noqa: E402
from analyzer.report.page.build import render  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def _browser() -> Iterator[Page]:
    if reason := missing():
        pytest.skip(reason)
    with browser() as page:
        yield page


@pytest.fixture
def page(_browser: Page) -> Iterator[Page]:
    _browser.size(1280, 900)
    _browser.scheme("light")
    _browser.driver.get("about:blank")
    _browser.forget()
    _browser.complaints()
    yield _browser
    assert _browser.complaints() == []


@pytest.fixture(scope="session")
def made() -> Made:
    return make_recording(1500, warnings=("The trace is made up.",))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write a page into a file and return its path."""

    def write(made: Made, **more: Any) -> Path:
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(render(made.report, made.recording, **more), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def report(made: Made, written: Callable[..., Path]) -> Path:
    return written(made)


@pytest.fixture(scope="session")
def comparison_report(made: Made, written: Callable[..., Path]) -> Path:
    earlier = make_recording(1200, kind=Kind.ESTIMATE)
    return written(
        made,
        comparison=compare(
            earlier.report, earlier.recording, made.report, made.recording
        ),
    )


@pytest.fixture(scope="session")
def hostile_report(written: Callable[..., Path]) -> Path:
    bad = make_recording(
        300,
        suffix=f"/{HOSTILE}",
        target={"name": HOSTILE},
        warnings=(HOSTILE,),
        error=Failure(type=HOSTILE[:60], message=HOSTILE, exit_code=5),
        versions={HOSTILE[:40]: HOSTILE[:40]},
    )
    document = bad.document
    evidence = [{HOSTILE: HOSTILE, "x_bytes": 3}]
    document["findings"][0].update(title=HOSTILE, detail=HOSTILE, evidence=evidence)
    document["peak"].update(op=HOSTILE, layer=HOSTILE)
    for row in document["tensors_at_peak"]:
        row["why_alive"] = HOSTILE
    report = msgspec.convert(document, ReportFile)
    return written(
        Made(bad.recording, report),
        comparison=compare(report, bad.recording, report, bad.recording),
    )
