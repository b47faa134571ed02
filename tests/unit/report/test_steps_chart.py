"""The charts of a program's memory after each step."""

from __future__ import annotations

import re
from dataclasses import replace

from builders import sample_folder
from msgspec import structs

import analyzer
from analyzer.explain.running.data_held import program_figures
from analyzer.model.contract.report.subject import ProgramFigures, TrendFigures
from analyzer.model.contract.watch_note import Reading, WatchNote
from analyzer.report.summary import place_words

FLAT = TrendFigures(trend="flat")


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
