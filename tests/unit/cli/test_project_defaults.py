"""Defaults of options from pyproject.toml, and the help that lists the options."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import analyze, sample_folder


def write_table(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.analyze]\n{text}", encoding="utf-8")


def test_a_default_is_used_unless_the_command_line_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, '[tool.analyze.trace]\nmax-peak = "1KiB"\n')
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    sample = sample_folder("infer").resolve()
    assert analyze("trace", sample, "-q").code == 3
    assert analyze("trace", sample, "-q", "--max-peak", "1GiB").code == 0


def test_options_of_a_capture_are_dropped_for_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, 'gpu = "t4"\nbatch-size = 8\n')
    monkeypatch.chdir(tmp_path)
    assert analyze("trace", sample_folder("infer").resolve(), "-q").code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[tool.analyze.trace]\nhtml = "page.html"\n', "html in [tool.analyze.trace]"),
        ("[tool.analyze.trace]\nbatchsize = 8\n", "batchsize in [tool.analyze.trace]"),
        ("[tool.analyze.trace\n", "cannot be read"),
    ],
)
def test_a_wrong_table_is_one_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    done = analyze("trace", "x", "-q")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err


def test_rare_options_are_listed_only_on_demand() -> None:
    assert "--assume" not in analyze("trace", "--help").out
    assert "--assume" in analyze("trace", "--help-all").out


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine", encoding="utf-8")
    refused = analyze("trace", sample_folder("infer"), "-q", "--html", page)
    assert (refused.code, page.read_text("utf-8")) == (2, "mine")
    assert "--force" in refused.err
    assert (
        analyze("trace", sample_folder("infer"), "-q", "--html", page, "--force").code
        == 0
    )
    assert page.stat().st_size > 4
