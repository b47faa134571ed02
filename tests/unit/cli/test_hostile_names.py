"""Names in a trace are untrusted: they appear as text wherever they are shown."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

import networkx as nx
import pytest
from builders import (
    TraceBuilder,
    analyze,
    parse_page,
    refusal,
    sample_folder,
    small_trace,
)

NAMES = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "end": "</script></style></title>--><!--",
    "quotes": "\"'`&amp;&<>",
    "newlines": "one\ntwo\r\nthree\x0bfour\x0cfive",
    "separators": "a\u2028b\u2029c\x85d",
    "ansi": "\x1b[2J\x1b[31mred\x1b]0;title\x07",
    "bidi": "abc\u202etxt.exe\u2066",
    "nul": "a\x00b\ufffe\uffff",
    "long": "l" * 10_000,
    "template": "{{ 7 * 7 }}${7*7}%(x)s{0}[bold]x[/bold][/]",
    "formula": "=1+1",
    "surrogate": b"lone \xed\xa0\x80 end",
    "not utf-8": b"\xff\xfe\x80 caf\xe9",
    "blank": " ",
}
CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def text_of(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def tags_of(page: Path) -> list[tuple[str, bool]]:
    """Return the tags of a page, and whether each has code of an event."""
    return sorted(
        (tag, any(name.startswith("on") for name in attributes))
        for tag, attributes in parse_page(page.read_text("utf-8")).tags
    )


def show(*words: str | Path) -> None:
    """Open a trace; the terminal gets no control characters."""
    done = analyze("trace", *words)
    assert (done.code, done.complaint) == (0, "")
    assert not CONTROLS.search(done.out)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_an_ops_name_is_text_everywhere(name: str | bytes, tmp_path: Path) -> None:
    # GIVEN a trace with a hostile op and one with a harmless op
    shown = text_of(name)
    path = small_trace(op=name).write(tmp_path / "a.xplane.pb")
    harmless = "/".join(
        ["conv"] * (1 + shown.count("/"))
    )  # a part before a slash is a layer
    plain = small_trace(op=harmless).write(tmp_path / "b.xplane.pb")
    # WHEN both are rendered in every form
    for trace, stem in ((path, "a"), (plain, "b")):
        show(
            trace, "--html", tmp_path / f"{stem}.html", "--csv", tmp_path / f"{stem}.csv",
            "--json", tmp_path / f"{stem}.json",
        )  # fmt: skip
    # THEN the document holds the name as it is
    document = json.loads((tmp_path / "a.json").read_text())
    ops = {row["op"] for row in document["tensors_at_peak"]}
    # AND an op without a scope has a number
    assert {op if op == shown else op.rpartition("#")[0] for op in ops} == {shown, "b"}
    # AND the page has no tag that the harmless one has not
    assert tags_of(tmp_path / "a.html") == tags_of(tmp_path / "b.html")
    # AND the table has one cell for it
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cell = rows[0]["op"] if "/" in shown else rows[0]["op"].rpartition("#")[0]
    assert cell.removeprefix("'") == shown.replace("\0", "\ufffd")


@pytest.mark.parametrize("key", ["markup", "newlines", "ansi", "not utf-8"])
def test_an_allocators_name_is_text(key: str, tmp_path: Path) -> None:
    name = NAMES[key]
    trace = (
        TraceBuilder()
        .allocate(1, 1, 256, allocator=name)
        .write(tmp_path / "b.xplane.pb")
    )
    show(trace, "--html", tmp_path / "b.html")
    # WHEN it is named in an error THEN that is one line of text too
    refused = refusal("trace", trace, "--allocator", "no such")
    assert not CONTROLS.search(refused.rstrip("\n"))


LONE_SURROGATE = "\ud800.py:build"  # JSON can hold it, UTF-8 cannot


@pytest.mark.parametrize(
    "key", ["markup", "newlines", "ansi", "long", "separators", "template", None]
)
def test_a_layer_a_source_and_a_variable_are_text(
    key: str | None, tmp_path: Path
) -> None:
    # GIVEN a run whose note names its layers, files, variables, device and warnings like that
    name = text_of(NAMES[key]) if key else LONE_SURROGATE
    folder = tmp_path / "run"
    shutil.copytree(sample_folder("infer"), folder)
    note = json.loads((folder / "run.json").read_text())
    for row in note["variables"]:
        row["path"] = f"{name}/{row['path']}"
    note["scopes"] = {
        scope: [kind, name] for scope, (kind, _) in note["scopes"].items()
    }
    note["notes"] = [name]
    note["device"]["name"] = name
    note["target"] = {"text": name, "kind": name, "name": name}
    note["error"] = {"type": name, "message": name, "exit_code": 2, "where": name}
    note["versions"] = {name: name}
    (folder / "run.json").write_text(json.dumps(note))
    # WHEN it is opened THEN nothing of it is obeyed
    show(
        folder, "--html", tmp_path / "a.html", "--graph", tmp_path / "a.graph.json",
        "--csv", tmp_path / "a.csv", "--json", tmp_path / "a.json",
    )  # fmt: skip
    assert "alert(" not in re.sub(r"\s", "", "".join(_scripts(tmp_path / "a.html")))
    graph = json.loads((tmp_path / "a.graph.json").read_text("utf-8"))
    assert len(nx.node_link_graph(graph, edges="edges"))
    assert (tmp_path / "a.csv").read_text("utf-8")


def _scripts(page: Path) -> list[str]:
    """Return what a browser would run: the scripts that are no data."""
    found = re.findall(
        r"<script([^>]*)>(.*?)</script", page.read_text("utf-8"), re.DOTALL
    )
    return [code for attributes, code in found if "application/" not in attributes]


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes only there")
def test_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\x1b[31m\n.xplane.pb"))
    small_trace().write(path)
    show(path, "--html", tmp_path / "a.html", "--json", tmp_path / "a.json")
    missing = refusal("trace", f"{path}.gone")
    assert not CONTROLS.search(missing.rstrip("\n"))
