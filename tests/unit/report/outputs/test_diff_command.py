"""``analyze diff`` and the outputs of ``analyze trace``, called as a user calls them."""

import json
import shutil
from pathlib import Path

import pytest
from builders import analyze, refusal, sample_folder

from analyzer.model.units import format_bytes
from analyzer.session.opening import open_result

INFER, CNN = sample_folder("infer"), sample_folder("cnn")


def test_the_difference_is_printed_and_written(tmp_path: Path) -> None:
    html, markdown, document = (
        tmp_path / name for name in ("d.html", "d.md", "d.json")
    )
    ended = analyze(
        "diff", INFER, CNN, "--html", html, "--markdown", markdown, "--json", document
    )
    assert ended.code == 0, ended.err
    needs = [open_result(one).report.peak.requested_bytes for one in (INFER, CNN)]
    more = format_bytes(needs[1] - needs[0])
    first, second = map(format_bytes, needs)
    lines = ended.out.splitlines()
    assert lines[0].startswith(f"cnn requests {more} ")
    assert lines[1].startswith(f"Requested peak: {first} → {second}.")
    assert lines[2].startswith("Largest change: gradient ")
    assert "optimizer state" in ended.out
    written = json.loads(document.read_text())
    assert written["schema_version"] == 1
    assert (written["a"]["label"], written["b"]["label"]) == ("infer", "cnn")
    assert html.read_text().startswith("<!doctype html>")
    assert "| requested |" in markdown.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d.html",
        "d.json",
        "d.md",
    ]


@pytest.mark.parametrize(
    ("first", "second", "allowed", "code"),
    [
        (INFER, CNN, "5%", 4),
        (INFER, CNN, "100MiB", 0),
        (CNN, INFER, "0%", 0),
        (CNN, CNN, "0%", 0),
    ],
)
def test_growth_over_what_is_allowed_exits_with_4(
    first: Path, second: Path, allowed: str, code: int
) -> None:
    ended = analyze("diff", first, second, "-q", "--fail-on-increase", allowed)
    assert ended.code == code
    assert " requests " in ended.out
    assert ended.out.count("\n") == 1
    assert (ended.err.count("\n"), "grew by" in ended.err) == (
        (1, True) if code else (0, False)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (CNN, "nowhere"),
        ("nowhere", CNN),
        (CNN, __file__),
        (CNN, Path(__file__).parent),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str | Path, ...], folder: Path) -> None:
    assert refusal("diff", *arguments).startswith("analyze: ")
    assert list(folder.iterdir()) == []


def test_a_folder_from_elsewhere_continues_with_itself(folder: Path) -> None:
    shutil.copytree(CNN, folder / "cnn")  # its target is traces/models.py:cnn
    ended = analyze("trace", "cnn")
    assert ended.out.endswith("Next: analyze trace cnn --html report.html\n")


def test_outputs_for_other_tools(tmp_path: Path) -> None:
    graph, markdown = tmp_path / "a.json", tmp_path / "summary.md"
    ended = analyze("trace", CNN, "-q", "--graph", graph, "--markdown", markdown)
    assert ended.code == 0, ended.err
    assert json.loads(graph.read_text())["nodes"]
    assert markdown.read_text().startswith("### Peak ")
