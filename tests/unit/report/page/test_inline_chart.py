"""The small timeline that notebooks show."""

from __future__ import annotations

import pytest
from builders import sample_folder

import analyzer
from analyzer.model.recording.timeline import category_sums
from analyzer.report.page.build import HEIGHT, inline_areas


@pytest.mark.parametrize("name", ["cnn", "transformer", "eager"])
def test_the_areas_reach_the_peak_and_hold_the_categories_of_the_step(name: str) -> None:
    result = analyzer.open_trace(sample_folder(name))
    analysis = result.analysis
    areas = inline_areas(result.report, result.recording)
    heights = [float(point.partition(",")[2]) for _, points in areas for point in points.split()]
    assert (min(heights), max(heights)) == (0.0, HEIGHT)
    sums = category_sums(analysis.rows, "requested_bytes", len(result.recording.events))
    inside = sums[:, analysis.first : analysis.last + 2]
    assert inside.sum(axis=0).max() == result.peak_bytes
    assert len(areas) <= (inside.max(axis=1) > 0).sum()
    assert {category for category, _ in areas} >= {
        category
        for category, size_bytes in analysis.categories.items()
        if size_bytes > result.peak_bytes / 20
    }
    assert "<polygon" in result._repr_html_()
