"""What ``analyze diff --json`` writes: what came, went and grew between two steps. Version 1."""

from __future__ import annotations

from typing import Final, Literal

from analyzer.model.contract.categories import Category
from analyzer.model.contract.fields import Name, ReportRecord, Signed, Text, Total, Word
from analyzer.model.contract.report.peak_figures import PeakFigures
from analyzer.model.contract.report.subject import Kind

DIFF_VERSION: Final = 1  # of the document's layout

Change = Literal["same", "came", "went", "grew", "shrank"]
"""What became of a layer or an op from the first side to the second."""


class DiffSide(ReportRecord, frozen=True, kw_only=True):
    """One of the two: what it is called, its kind, its batch size and its peak."""

    label: Text
    kind: Kind
    batch_size: Total | None
    peak: PeakFigures


class BytesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """Bytes of both sides and the second less the first; None where a side does not know them."""

    a_bytes: Total | None
    b_bytes: Total | None
    delta_bytes: Signed | None


class PeakOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """One of the numbers that are called the peak: requested, allocated, pool, process."""

    number: Literal["requested", "allocated", "pool", "process"]


class CategoryOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one category at each side's peak."""

    category: Category


class LayerOfBoth(BytesOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one layer at each side's peak."""

    name: Name
    change: Change


class OpOfBoth(LayerOfBoth, frozen=True, kw_only=True):
    """Requested bytes of one op at each side's peak, with its type and layer."""

    type: Word
    layer: Name


class StepCurve(ReportRecord, frozen=True, kw_only=True):
    """The steady step's bytes over its events, each point a real instant.

    Attributes:
        progress_ratio: From 0, the first event, to 1, the last.
        requested_bytes, allocated_bytes: At that instant.
    """

    progress_ratio: tuple[float, ...]
    requested_bytes: tuple[Total, ...]
    allocated_bytes: tuple[Total, ...]


class CurvesOfBoth(ReportRecord, frozen=True, kw_only=True):
    """The curves of the two sides."""

    a: StepCurve
    b: StepCurve


class DiffFile(ReportRecord, frozen=True, kw_only=True):
    """What differs from the first step (the older, or the prediction) to the second.

    Attributes:
        schema_version: Which form of report it is.
        kind: ``diff``.
        headline, notes: In words.
        a, b: The two sides.
        peak: A row for each number that a side knows.
        categories: A row for each category that a side has.
        layers, ops: A row for each, the largest difference first.
        timelines: The steady step of both.
    """

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
