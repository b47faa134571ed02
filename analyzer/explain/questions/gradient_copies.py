"""Several gradients of one variable that are alive at once, as when they are accumulated.

Unless something makes one micro-batch wait for the one before, the executor is free to run all their
backward passes first and to add up afterwards; then every micro-batch's gradients lie side by side. The
same happens to a weight that is used several times, whose partial gradients wait for one ``AddN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import describe_buffer, why_alive
from analyzer.explain.questions.savings import saved_without
from analyzer.explain.questions.severity import LOW, severity_of
from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.recording.records import Finding
from analyzer.model.units import format_bytes

_EVIDENCE_ROWS = 20  # tensors told one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """Gradients of one variable alive at the peak.

    Attributes:
        variable: Its path; several, joined, where more than one of a layer has the shape.
        each: How many there are for each variable.
        rows: Their rows of the allocations table, in order of birth.
    """

    variable: str
    each: int
    rows: pd.DataFrame

    @property
    def requested_bytes(self) -> int:
        return int(self.rows["requested_bytes"].sum())


def find_gradient_copies(analysis: Analysis) -> list[Finding]:
    """Report gradients of one variable of which more than one is alive at the peak."""
    found = sorted(_copies(analysis), key=lambda one: -one.requested_bytes)
    peak = analysis.peak.requested_bytes
    saves = _saves(analysis, found) if found else 0
    if not found or saves < LOW * peak:
        return []
    total = sum(one.requested_bytes for one in found)
    largest, others = found[0], len(found) - 1
    size = f"{format_bytes(total)} ({total / peak:.0%} of the peak)"
    if others:
        size = f"with those of {others} other variable{'s' * (others > 1)} {size}"
    return [
        Finding(
            id="gradient-copies",
            severity=severity_of(saves, peak),
            title=f"{largest.each} gradients of {largest.variable} are alive at once: {size}",
            detail="They come from several micro-batches, or from several uses of one weight, and "
            "nothing makes one wait until the one before it is added up, so that all are computed "
            "first. tf.control_dependencies on the last assign_add around the next micro-batch, a "
            "tf.while_loop with parallel_iterations=1, or a call of the tf.function for each "
            "micro-batch keeps one of each. The saving is that of each gradient dying when the next "
            "of its variable is born, by the timeline.",
            saves_bytes=saves,
            evidence=tuple(_evidence(analysis, found)),
        )
    ]


def _copies(analysis: Analysis) -> Iterator[_Copies]:
    """Yield the variables with more gradients alive at the peak than variables of that shape."""
    alive = analysis.alive
    held = alive["variable"] != ""
    parameters = alive[held & (alive["category"] == Category.PARAMETER.value)]
    owners: dict[tuple[str, str, str], set[str]] = {}
    for row in parameters.to_dict("records"):
        owners.setdefault(_key(row), set()).add(str(row["variable"]))
    gradients = alive[~held & (alive["category"] == Category.GRADIENT.value)]
    keys = [_key(row) for row in gradients.to_dict("records")]
    places: dict[tuple[str, str, str], list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    for key, chosen in places.items():
        variables = owners.get(key, set())
        each = len(chosen) // max(len(variables), 1)
        if variables and each > 1:
            rows = gradients.iloc[chosen].sort_values("born", kind="stable")
            yield _Copies(variable=" and ".join(sorted(variables)), each=each, rows=rows)


def _key(row: dict[str, object]) -> tuple[str, str, str]:
    """Return what a gradient and its variable have in common: layer, shape and type."""
    return str(row["layer"]), str(row["shape"]), str(row["dtype"])


def _saves(analysis: Analysis, found: list[_Copies]) -> int:
    """Return what is saved where each gradient dies when the next one of its variable is born."""
    gone = []
    for one in found:
        rows = one.rows
        many = len(rows) // one.each  # variables that share layer and shape have one each
        later = rows["born"].to_numpy()[many:]
        for row, born in zip(rows.to_dict("records"), later, strict=False):
            gone.append((int(row["requested_bytes"]), int(born), int(row["dies"])))
    sizes, gone_from, gone_until = zip(*gone, strict=True)
    return saved_without(analysis, sizes, gone_from, gone_until)


def _evidence(analysis: Analysis, found: list[_Copies]) -> Iterator[EvidenceRow]:
    left = _EVIDENCE_ROWS
    for one in found:
        for index, row in one.rows.head(left).iterrows():
            left -= 1
            yield {
                **describe_buffer(row),
                "of": one.variable,
                "why_alive": why_alive(row, analysis.uses.get(int(index))),
            }
