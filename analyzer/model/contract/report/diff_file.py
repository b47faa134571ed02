"""The output of ``analyze diff --json``: the difference of two steps. Version 1."""

from __future__ import annotations

from typing import Final, Literal

from analyzer.model.choice import Category
from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total
from analyzer.model.contract.report.peak_figures import PeakFigures
from analyzer.model.contract.report.subject import Kind

DIFF_VERSION: Final = 1

Number = Literal["needs", "requested", "allocated", "pool", "process"]
"""The numbers of both sides, in the order of the report."""

Change = Literal["same", "came", "went", "grew", "shrank"]
"""The change of a layer or an op between the two sides."""


class DiffSide(ReportRecord, frozen=True, kw_only=True):
    """One of the two steps: label, kind, batch size and peak."""

    label: Text
    kind: Kind
    batch_size: Total | None
    peak: PeakFigures


class BytesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """Bytes of both sides and the difference (b - a); None if unknown."""

    a_bytes: Total | None
    b_bytes: Total | None
    delta_bytes: Signed | None


class PeakOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """One of the peaks of both sides."""

    number: Number


class CategoryOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one category at each side's peak."""

    category: Category


class LayerOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one layer at each side's peak."""

    name: Name
    change: Change


class OpOfBoth(LayerOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one op at each side's peak, with its type and layer."""

    type: Name
    layer: Name


class StepCurve(ReportRecord, frozen=True, kw_only=True):
    """Bytes of the steady step at selected instants; ``progress_ratio`` is 0 for its first event."""

    progress_ratio: tuple[float, ...]
    requested_bytes: tuple[Total, ...]
    allocated_bytes: tuple[Total, ...]


class CurvesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """The curves of the two sides."""

    a: StepCurve
    b: StepCurve


class DiffFile(ReportRecord, frozen=True, kw_only=True):
    """The difference between two steps, an older one or a prediction first; largest rows first."""

    schema_version: int = DIFF_VERSION
    kind: Literal["diff"] = "diff"
    headline: Text
    notes: tuple[Text, ...]
    a: DiffSide
    b: DiffSide
    peak: tuple[PeakOfBoth, ...]
    categories: tuple[CategoryOfBoth, ...]
    layers: tuple[LayerOfBoth, ...]
    ops: tuple[OpOfBoth, ...]
    timelines: CurvesOfBoth
