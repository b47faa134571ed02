"""The recipe of docs/ci.md: its commands run as they stand there, on sample traces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import ROOT, analyze, sample_folder

RECIPE = (ROOT / "docs" / "ci.md").read_text("utf-8").split("```yaml")[1].split("```")[0]


def commands() -> list[list[str]]:
    """Return what the recipe calls `analyze` with."""
    return [line.split()[1:] for line in re.findall(r"(?:run: |^ +)(analyze .+)$", RECIPE, re.M)]


def test_its_commands_are_taken_and_its_files_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, before, compared = commands()
    assert first[0] == before[0] == "trace"
    # A trace that exists stands for the capture: it takes neither a folder nor threads.
    limit = first.index("--max-peak")
    options = [*first[limit : limit + 1], "1MiB", *first[limit + 2 :]]
    over = analyze("trace", sample_folder("infer"), *options)
    assert over.code == 3
    summary = Path("peak.md").read_text("utf-8")
    assert re.search(
        r"\*\*The allocated peak of .* is above the limit of 1\.00 MiB by .*\*\*", summary
    )
    within = [word.replace("1MiB", "1GiB") for word in options]
    assert analyze("trace", sample_folder("infer"), *within, "--force").code == 0
    assert "is within the limit of 1.00 GiB" in Path("peak.md").read_text("utf-8")
    sides = {"before": sample_folder("infer"), "after": sample_folder("cnn")}
    grown = analyze(*(sides.get(word, word) for word in compared))
    assert grown.code == 4
    assert Path("diff.md").stat().st_size > 0


def test_every_command_has_its_options() -> None:
    for words in commands():
        known = analyze(words[0], "--help-all").out
        assert not [w for w in words if w.startswith("--") and w not in known]
