from __future__ import annotations

import dataclasses
import html.parser
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from make_recording import Made, document_of, make_recording
from test_page_columns import unpack

from analyzer.model.contract.report.writing import convert_report, plain_report
from analyzer.model.recording.records import Kind
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, empty
from analyzer.report.page import payload as payload_module
from analyzer.report.page.build import SCRIPTS, render, render_inline
from analyzer.report.render import page_shell

PAGE = Path(payload_module.__file__).parent
HOSTILE = "<script>alert(1)</script>\"'&</style>\n\u2028{{ 7 * 7 }}\0\ud800" + "N" * 10_000


@pytest.fixture(scope="module")
def made() -> Made:
    return make_recording(600)


class _Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    return tags


def columns_of(page: str) -> tuple[dict, dict]:
    return unpack(re.search(r'id="packed">([^<]*)<', page).group(1))


def test_the_page_holds_everything_and_names_no_other_place(made: Made) -> None:
    page = render(made.report, made.recording)
    for tag, attributes in parse(page).tags:
        assert tag not in ("iframe", "object", "embed", "img")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:")), attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    outside = set(re.findall(r"https?://[^\s'\"]+", page))
    assert outside <= {"http://www.w3.org/2000/svg"}


def test_the_policy_allows_two_scripts_by_hash_and_nothing_else(made: Made) -> None:
    page = render(made.report, made.recording)
    policy = next(
        a["content"]
        for t, a in parse(page).tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 3
    assert "unsafe" not in policy


def test_hostile_text_is_text_everywhere() -> None:
    made = make_recording(
        300,
        suffix=HOSTILE.replace("\ud800", ""),  # tables come from files, which cannot hold it
        target={"name": HOSTILE},
        warnings=(HOSTILE,),
        versions={HOSTILE: HOSTILE},
        error={"type": HOSTILE, "message": HOSTILE},
    )
    page = render(made.report, made.recording)
    assert page.encode("utf-8")
    assert page.count("<script") == 3
    assert "alert(1)" in page
    shown = HOSTILE.replace("\0", "\ufffd").replace("\ud800", "?")
    assert shown in "".join(parse(page).text)


def test_no_script_of_ours_ends_its_element_or_makes_markup() -> None:
    theme = Path(page_shell.__file__).parent / "assets/theme.js"
    for name in (*(PAGE / name for name in SCRIPTS), theme):
        text = name.read_text(encoding="utf-8")
        assert "</" not in text, name
        assert "<!--" not in text, name
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert forbidden not in text, (name, forbidden)


def test_every_file_of_the_script_is_used() -> None:
    found = {path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*.js")}
    assert found == {*SCRIPTS}


@pytest.mark.parametrize(
    ("n_events", "most_bytes"),
    [(10_000, 1_500_000), pytest.param(100_000, 6_000_000, marks=pytest.mark.slow)],
)
def test_size(n_events: int, most_bytes: int) -> None:
    made = make_recording(n_events)
    assert abs(len(made.recording.events) - n_events) < 0.01 * n_events
    assert len(render(made.report, made.recording)) < most_bytes


def test_the_columns_are_the_allocations(made: Made) -> None:
    header, columns = columns_of(render(made.report, made.recording))
    table = made.recording.allocations.sort_values("born", kind="stable")
    assert (columns["born"] - 1).tolist() == table["born"].tolist()
    assert (columns["dies"] - 1).tolist() == table["dies"].tolist()
    assert columns["requested"].tolist() == table["requested_bytes"].tolist()
    assert (columns["address"].astype(int) - 1 + header["address_base"]).tolist() == table[
        "address"
    ].tolist()
    assert [header["strings"][int(place)] for place in columns["op"]] == table["op"].tolist()
    assert header["document"] == plain_report(made.report)


def test_other_allocators_are_left_out(made: Made) -> None:
    table = made.recording.allocations.assign(allocator="other")
    both = pd.concat([made.recording.allocations, table]).astype({"allocator": "category"})
    page = render(made.report, dataclasses.replace(made.recording, allocations=both))
    assert columns_of(page)[0]["buffers"] == len(table)


def test_folded_buffers_still_count(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_module, "MAX_BUFFERS", 20)
    header, columns = columns_of(render(made.report, made.recording))
    assert header["buffers"] == 20
    assert header["folded_buffers"] == len(made.recording.allocations) - 20
    total = sum(columns[f"folded_{name}"] for name in header["categories"])
    listed = np.zeros(header["states"] + 1)
    np.add.at(listed, columns["born"].astype(int), columns["requested"])
    np.add.at(listed, columns["dies"].astype(int), -columns["requested"].astype(float))
    state = header["document"]["peak"]["instant"] + 1
    assert total[state] + np.cumsum(listed)[state] == made.document["peak"]["requested_bytes"]


def test_a_prediction_needs_no_events_addresses_or_graph(made: Made) -> None:
    table = made.recording.allocations.assign(address=pd.NA, born_ps=pd.NA, dies_ps=pd.NA)
    table = table.astype({name: column.dtype for name, column in ALLOCATIONS.items()})
    recording = dataclasses.replace(
        made.recording,
        kind=Kind.ESTIMATE,
        events=empty(EVENTS),
        allocations=table,
        make_graph=None,
        make_tensor_links=None,
    )
    page = render(convert_report({**made.document, "kind": "estimate"}), recording)
    header, columns = columns_of(page)
    assert header["states"] == len(made.recording.events) + 1
    assert "time_ps" not in columns
    assert not columns["address"].any()
    assert "; no step ran." in page


def test_nothing_allocated_is_still_a_page() -> None:
    made = make_recording(60)
    recording = dataclasses.replace(
        made.recording,
        events=empty(EVENTS),
        allocations=empty(ALLOCATIONS),
        steps=(),
        make_graph=None,
        make_tensor_links=None,
    )
    zero = dict.fromkeys(made.document["categories_at_peak"], 0)
    peak = {**made.document["peak"], "requested_bytes": 0, "allocated_bytes": 0, "instant": -1}
    document = {
        **made.document,
        "peak": peak,
        "categories_at_peak": zero,
        "ops": [],
        "tensors_at_peak": [],
        "findings": [],
    }
    assert "0\u00a0B allocated" in render(convert_report(document), recording)


def test_a_document_without_its_optional_parts_is_still_a_page(made: Made) -> None:
    needed = ("kind", "target", "device", "peak", "categories_at_peak")
    document = {key: made.document[key] for key in needed}
    assert "Peak " in render(convert_report(document), made.recording)
    assert "Peak " in render_inline(convert_report(document))


def test_uses_and_readers_come_from_the_graph(made: Made) -> None:
    header, columns = columns_of(render(made.report, made.recording))
    table = made.recording.allocations.sort_values("born", kind="stable").reset_index(drop=True)
    row = table.index[table["tensor"] == "model/block0/conv3/Conv2D:0"][0]
    uses = columns["use_state"][
        int(columns["use_offset"][row]) : int(columns["use_offset"][row + 1])
    ]
    backward = table.index[
        (table["op"] == "gradients/model/block0/conv3/grad") & (table["born"] > table["born"][row])
    ]
    assert table["born"][backward[0]] + 1 in uses
    names = [header["strings"][int(place)] for place in columns["graph_tensor"]]
    tensor = names.index("model/block0/conv3/Conv2D:0")
    readers = columns["graph_consumer"][
        int(columns["graph_offset"][tensor]) : int(columns["graph_offset"][tensor + 1])
    ]
    assert [header["ops"][int(op)][0] for op in readers] == [
        "model/block0/conv4/Conv2D",
        "gradients/model/block0/conv3/grad",
    ]


def test_the_summary_for_a_notebook_has_no_script(made: Made) -> None:
    made.document["findings"][0]["title"] = HOSTILE
    text = render_inline(made.report)
    assert "<script" not in text
    assert "alert(1)" in text
    assert f"{made.document['peak']['requested_bytes']:,} bytes" in text


def test_the_builder_agrees_with_itself(made: Made) -> None:
    document = document_of(made.recording)
    assert sum(document["categories_at_peak"].values()) == document["peak"]["requested_bytes"]


def test_steps_without_a_time_have_no_column_for_it(made: Made) -> None:
    def head(document: dict) -> str:
        page = render(convert_report(document), made.recording)
        return re.search(r"Peak of each step.*?<thead>(.*?)</thead>", page, re.S).group(1)

    steps = [{**step, "duration_s": 0.5} for step in made.document["steps"]]
    assert ">time<" in head({**made.document, "steps": steps})
    steps = [{**step, "duration_s": None} for step in steps]
    assert ">time<" not in head({**made.document, "steps": steps})


def test_a_note_is_no_change(made: Made) -> None:
    finding = {"id": "optimizer-state", "detail": "", "evidence": [], "saves_bytes": 428}
    findings = [
        {**finding, "severity": "info", "title": "hardly"},
        {**finding, "severity": "low", "title": "first"},
    ]
    page = render(convert_report({**made.document, "findings": findings}), made.recording)
    changes, _, observations = page.partition("Observations</h2>")
    assert "first" in changes.partition("What to change</h2>")[2]
    assert "hardly" in observations.partition("Other numbers</h2>")[0]
