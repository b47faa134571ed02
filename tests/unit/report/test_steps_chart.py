"""The charts of a program's memory after each step."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from builders import sample_folder
from msgspec import structs

import analyzer
from analyzer.explain.running.data_held import program_figures
from analyzer.model.contract.report.subject import ProgramFigures, TrendFigures
from analyzer.model.contract.watch_note import Reading, WatchNote
from analyzer.report.page.build import steps_charts
from analyzer.report.summary import place_words, program_words

FLAT = TrendFigures(trend="flat")


def test_readings_are_drawn_at_their_steps_and_heights() -> None:
    readings = [
        Reading(step=step, in_use_bytes=size) for step, size in ((1, 50), (6, 0), (11, 100))
    ]
    program = ProgramFigures(
        step="", steps=11, warmup=3, device=FLAT, host=FLAT, readings=tuple(readings)
    )
    (chart,) = steps_charts(program)  # the process' own memory was not read
    points = re.search(r'points="([^"]+)"', chart.svg)
    assert points is not None
    places = [tuple(map(float, place.split(","))) for place in points[1].split()]
    across = [x for x, _ in places]
    assert across[1] - across[0] == across[2] - across[1] > 0
    heights = [places[1][1] - y for _, y in places]
    assert heights[1] == 0
    assert abs(heights[2] - 2 * heights[0]) < 0.2
    assert 'class="shade"' in chart.svg
    assert "0 B to 100 B, at the end 100 B" in chart.caption


def test_a_report_keeps_the_last_of_many_readings() -> None:
    many = tuple(Reading(step=step, in_use_bytes=step) for step in range(1, 1001))
    program = figures_of(WatchNote(readings=many, steps=1000))
    assert 200 < len(program.readings) <= 256
    assert [one.step for one in program.readings][-1] == 1000
    assert figures_of(WatchNote()).readings == ()


def test_the_peak_of_a_traced_step_is_no_peak_of_the_program() -> None:
    report = analyzer.open_trace(sample_folder("eager")).report
    program = ProgramFigures(step="a call", steps=9, warmup=3, device=FLAT, host=FLAT)
    traced = place_words(structs.replace(report, program=program))
    assert re.match(
        r"The step's peak, [\d.]+ MiB requested, is reached in traced step \d by ", traced
    )
    whole = place_words(structs.replace(report, program=structs.replace(program, whole_run=True)))
    assert re.match(r"The run's peak, [\d.]+ MiB requested, is reached by ", whole)


def figures_of(watch: WatchNote) -> ProgramFigures:
    recording = analyzer.open_trace(sample_folder("eager")).recording
    figures = program_figures(replace(recording, watch=watch))
    assert figures is not None
    return figures


@pytest.mark.parametrize("is_compiled", [False, True])
def test_peaks_of_parallel_ops_are_said_to_differ(is_compiled: bool) -> None:
    program = ProgramFigures(step="a call", steps=9, warmup=3, device=FLAT, host=FLAT)
    words = " ".join(program_words(program, is_compiled=is_compiled))
    assert ("peaks differ from run to run" in words) is not is_compiled
