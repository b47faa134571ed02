"""The text map of the pool."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from builders import sample_folder

import analyzer
from analyzer.model.recording.timeline import alive_at, sum_by_category
from analyzer.report.document import draw_pool


@pytest.mark.parametrize("name", ["cnn", "transformer", "oom"])
def test_each_category_has_its_share_of_the_map(name: str) -> None:
    result = analyzer.open_trace(sample_folder(name))
    *lines, _ = result.report.fragmentation.pool_map
    letters = Counter("".join(lines))
    alive = alive_at(result.allocations, result.analysis.peak.allocated_instant)
    total = int(alive["allocated_bytes"].sum())
    drawn = sum(count for letter, count in letters.items() if letter != ".")
    assert max(map(len, lines)) <= 56
    sizes = alive.assign(requested_bytes=alive["allocated_bytes"])
    for category, size_bytes in sum_by_category(sizes).items():
        share = letters[category[0].upper()] / drawn
        assert abs(share - size_bytes / total) < 0.06, category


def test_an_estimate_has_no_addresses_and_no_map() -> None:
    result = analyzer.open_trace(sample_folder("cnn"))
    assert result.report.fragmentation.pool_map
    rows = result.allocations.assign(address=None)
    assert draw_pool(replace(result.analysis, rows=rows)) == ()
