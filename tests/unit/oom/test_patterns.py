"""The table of wordings: every row is used, and none takes long on a hostile line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from analyzer.oom.scan import patterns
from analyzer.oom.scan.patterns import COMPONENTS, PATTERNS, find_all

LINE_CHARACTERS = 1 << 14  # the reader drops the rest of a line
MOST_SECONDS = 1.0
CODE = "".join(file.read_text() for file in Path(patterns.__file__).parent.glob("*.py"))


def test_every_row_is_used_and_every_use_has_a_row() -> None:
    quoted = set(re.findall(r'"([a-z_]+)"', CODE))
    assert set(PATTERNS) - set(COMPONENTS) <= quoted
    used = re.findall(r'(?:find|find_all)\("(\w+)"|PATTERNS\["(\w+)"\]', CODE)
    assert {name for pair in used for name in pair if name} <= set(PATTERNS)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_is_slow_on_a_line_that_nearly_matches(name: str) -> None:
    source = PATTERNS[name].pattern
    literals = [part for part in re.findall(r"[A-Za-z][\w :,.'/=-]{2,}", source) if part.strip()]
    seeds = {*literals, " ".join(literals), "1 ", "a", "[", " "} - {""}
    for seed in seeds:
        line = (seed * (LINE_CHARACTERS // len(seed) + 1))[:LINE_CHARACTERS]
        started = time.process_time()
        find_all(name, line)
        assert time.process_time() - started < MOST_SECONDS, seed
