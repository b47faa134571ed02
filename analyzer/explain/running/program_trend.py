"""What a program's steps did to memory over all of them, for the report."""

from __future__ import annotations

from analyzer.explain.running.slope import StepGrowth, growth_of
from analyzer.model.contract.report.run_figures import (
    MOST_READINGS,
    HeldReading,
    ProgramFigures,
    TrendFigures,
)
from analyzer.model.contract.watch_note import WatchNote


def program_figures(watch: WatchNote | None) -> ProgramFigures | None:
    """Return the figures; None where the capture made the step."""
    if watch is None:
        return None
    return ProgramFigures(
        step=watch.step,
        where=watch.where,
        steps=watch.steps,
        warmup=watch.warmup,
        device=_trend(growth_of(watch.readings, watch.warmup)),
        host=_trend(growth_of(watch.readings, watch.warmup, lambda one: one.host_bytes)),
        readings=_thinned(watch),
        ended=watch.ended,
    )


def _thinned(watch: WatchNote) -> tuple[HeldReading, ...]:
    """Return the readings, every second, third ... of them where there are many; and the last."""
    stride = -(-len(watch.readings) // (MOST_READINGS - 1)) or 1
    last = watch.readings[-1:]
    chosen = [one for one in watch.readings[::stride] if one.step != last[0].step]
    return tuple(
        HeldReading(step=one.step, in_use_bytes=one.in_use_bytes, host_bytes=one.host_bytes)
        for one in (*chosen, *last)
    )


def _trend(growth: StepGrowth) -> TrendFigures:
    return TrendFigures(
        trend=growth.trend,
        per_step_bytes=growth.per_step_bytes,
        low_bytes=growth.low_bytes,
        high_bytes=growth.high_bytes,
        first_step=growth.first_step,
        last_step=growth.last_step,
        level_bytes=growth.level_bytes,
    )
