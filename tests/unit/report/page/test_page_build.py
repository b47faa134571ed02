import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from builders import parse_page
from make_recording import Made, make_recording
from msgspec.structs import replace
from test_page_columns import unpack

from analyzer.model.contract.report_file import ProgramFigures, ReportFile, plain_report
from analyzer.model.contract.run_note import Failure
from analyzer.report.page import build as payload_module
from analyzer.report.page.build import render, render_inline, steps_chart

HOSTILE = (
    "<script>alert(1)</script>\"'&</style>\n\u2028{{ 7 * 7 }}\0\ud800" + "N" * 10_000
)


@pytest.fixture(scope="module")
def made() -> Made:
    return make_recording(600)


def columns_of(page: str) -> tuple[dict, dict]:
    return unpack(re.search(r'id="packed">([^<]*)<', page).group(1))


def test_the_policy_allows_two_scripts_by_hash_and_nothing_else(made: Made) -> None:
    page = render(made.report, made.recording)
    policy = next(
        a["content"]
        for t, a in parse_page(page).tags
        if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 3
    assert "unsafe" not in policy


def test_hostile_text_is_text_everywhere() -> None:
    made = make_recording(
        300,
        suffix=HOSTILE.replace(
            "\ud800", ""
        ),  # tables come from files, which cannot hold it
        target={"name": HOSTILE},
        warnings=(HOSTILE,),
        versions={HOSTILE: HOSTILE},
        error=Failure(type=HOSTILE, message=HOSTILE),
    )
    page = render(made.report, made.recording)
    assert page.encode("utf-8")
    assert page.count("<script") == 3
    assert "alert(1)" in page
    shown = HOSTILE.replace("\0", "\ufffd").replace("\ud800", "?")
    assert shown in "".join(parse_page(page).text)


def test_the_columns_are_the_allocations(made: Made) -> None:
    header, columns = columns_of(render(made.report, made.recording))
    table = made.recording.allocations.sort_values("born", kind="stable")
    assert (columns["born"] - 1).tolist() == table["born"].tolist()
    assert (columns["dies"] - 1).tolist() == table["dies"].tolist()
    assert columns["requested"].tolist() == table["requested_bytes"].tolist()
    assert (
        columns["address"].astype(int) - 1 + header["address_base"]
    ).tolist() == table["address"].tolist()
    assert [header["strings"][int(place)] for place in columns["op"]] == table[
        "op"
    ].tolist()
    document = plain_report(made.report)
    assert header["document"].items() <= document.items()


def test_folded_buffers_still_count(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "MAX_BUFFERS", 20)
    header, columns = columns_of(render(made.report, made.recording))
    assert header["buffers"] == 20
    assert header["folded_buffers"] == len(made.recording.allocations) - 20
    total = sum(columns[f"folded_{name}"] for name in header["categories"])
    listed = np.zeros(header["states"] + 1)
    np.add.at(listed, columns["born"].astype(int), columns["requested"])
    np.add.at(listed, columns["dies"].astype(int), -columns["requested"].astype(float))
    state = header["document"]["peak"]["instant"] + 1
    assert (
        total[state] + np.cumsum(listed)[state]
        == made.document["peak"]["requested_bytes"]
    )


def test_readers_come_from_the_graph(made: Made) -> None:
    header, columns = columns_of(render(made.report, made.recording))
    names = [header["strings"][int(place)] for place in columns["graph_tensor"]]
    tensor = names.index("model/block0/conv3/Conv2D:0")
    readers = columns["graph_consumer"][
        int(columns["graph_offset"][tensor]) : int(columns["graph_offset"][tensor + 1])
    ]
    assert {header["ops"][int(op)][0] for op in readers} == {
        "model/block0/conv4/Conv2D",
        "gradients/model/block0/conv3/grad",
    }


def test_the_summary_for_a_notebook_has_no_script(made: Made) -> None:
    document = made.document
    document["findings"][0]["title"] = HOSTILE
    text = render_inline(msgspec.convert(document, ReportFile))
    assert "<script" not in text
    assert "alert(1)" in text
    assert f"{made.document['peak']['requested_bytes']:,} bytes" in text


@pytest.mark.parametrize(
    "name", ["a\0.py:1", "\ud800.py:3", "/etc/passwd:1", "x.py:no"]
)
def test_no_name_of_a_source_fails_the_page(made: Made, name: str) -> None:
    first, second, *_ = made.report.tensors_at_peak
    rows = (replace(first, source=name), replace(second, source="b.py:2"))
    page = render(replace(made.report, tensors_at_peak=rows), made.recording)
    assert "own the most bytes" in page
    assert "root:x:" not in page


def test_the_page_shows_the_text_of_own_lines_only(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    sizes: dict[str, int] = {}
    for tensor in made.report.tensors_at_peak:
        sizes[tensor.source] = sizes.get(tensor.source, 0) + tensor.requested_bytes
    sizes.pop("", None)
    largest = max(sizes, key=sizes.__getitem__)
    number = int(largest.rpartition(":")[2])
    lines = [f"line_{at} = '<b>'" for at in range(1, 60)]

    (tmp_path / "model.py").write_text("\n".join(lines))
    (project / "model.py").symlink_to(tmp_path / "model.py")  # of another folder
    assert "line_" not in render(made.report, made.recording)

    (project / "model.py").unlink()
    (project / "model.py").write_text("\n".join(lines))
    page = render(made.report, made.recording)
    assert f"line_{number} = &#39;&lt;b&gt;&#39;" in page
    assert largest in page

    rows = tuple(replace(row, source="") for row in made.report.tensors_at_peak)
    redacted = replace(made.report, tensors_at_peak=rows)
    assert "own the most bytes" not in render(redacted, made.recording)


def test_readings_of_one_step_are_drawn() -> None:
    reading = SimpleNamespace(step=2, in_use_bytes=64)
    program = cast(ProgramFigures, SimpleNamespace(readings=(reading,) * 3))
    chart = steps_chart(program)
    assert chart[1].split() == ["0.0000,0.0000"] * 3
