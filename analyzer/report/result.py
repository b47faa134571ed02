"""What a command returns: the result of one step or the difference of two, with the files to export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from analyzer.model.contract.fields import StrPath
from analyzer.model.contract.report_file import DiffFile, PeakOfBoth, ReportFile
from analyzer.model.errors import ExitCode, InputError
from analyzer.model.units import format_bytes, parse_bytes
from analyzer.report.output_files import ReportOutput, output_file, write_text
from analyzer.report.untrusted import csv_cell

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

    from analyzer.explain.analysis import Analysis
    from analyzer.model.contract.report_file import Finding
    from analyzer.model.recording.records import Recording


@dataclass(frozen=True, eq=False)
class Result(ReportOutput):
    """The memory of one step.

    ``make_analysis`` returns the analysis; a finished result reads its tables only then. ``folder`` is
    the run folder; None for a trace without one.
    """

    make_analysis: Callable[[], Analysis] = field(repr=False)
    report: ReportFile = field(repr=False)
    folder: Path | None = None

    @cached_property
    def analysis(self) -> Analysis:
        """The recording with its peak."""
        return self.make_analysis()

    @property
    def recording(self) -> Recording:
        """The events and allocations."""
        return self.analysis.recording

    @property
    def allocations(self) -> pd.DataFrame:
        """Every buffer: columns of ``ALLOCATIONS``."""
        return self.analysis.rows

    @property
    def graph(self) -> nx.MultiDiGraph | None:
        """The graph of ops and tensors; None if the trace has none."""
        return self.recording.graph

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, the most important first."""
        return self.report.findings

    @property
    def peak_bytes(self) -> int:
        """Requested bytes at the steady step's peak."""
        return self.report.peak.requested_bytes

    @property
    def exit_code(self) -> ExitCode:
        """The exit code for how the step ended, on the card if it ran again with more room."""
        if self.report.error is not None:
            return self.report.error.exit_code

        # a run with room for any step follows one that the card was too small for
        if self.report.simulated_card and self.report.fits is False:
            return ExitCode.STEP_OUT_OF_MEMORY

        return ExitCode.OK

    @property
    def is_over_limit(self) -> bool:
        """Whether the step does not fit the card or limit, or a requested replay fails."""
        replayed = self.report.what_if
        return self.report.fits is False or (replayed is not None and not replayed.fits)

    @cached_property
    def _page(self) -> str:
        """The report page; rendered once for the run folder and the user's own file."""
        from analyzer.report.page.build import render  # reads the page's assets

        return render(self.report, self.recording)

    def to_html(self, path: StrPath) -> None:
        """Write the report page: one file that needs no network."""
        write_text(Path(path), self._page)

    def to_csv(self, path: StrPath) -> None:
        """Write every allocation, in order of birth; ``alive_at_peak`` is for the requested peak."""
        rows = self.allocations.sort_values("born", kind="stable")
        is_alive = rows.index.isin(self.analysis.alive.index)
        cells = rows.assign(alive_at_peak=is_alive).astype(object).map(csv_cell)

        with output_file(Path(path)) as temporary:
            cells.to_csv(temporary, index=False, lineterminator="\r\n")

    def to_markdown(
        self,
        path: StrPath,
        *,
        max_peak_bytes: int | None = None,
    ) -> None:
        """Write a summary for a pull request; ``max_peak_bytes`` limits the requested peak."""
        from analyzer.report.render.markdown import to_markdown
        from analyzer.report.report_sections import report_document

        write_text(
            Path(path),
            to_markdown(report_document(self.report, max_peak_bytes)),
        )

    def to_graph(self, path: StrPath) -> None:
        """Write the graph of ops and tensors as node-link JSON."""
        from analyzer.model.graph.networkx_graph import to_node_link

        if self.graph is None:
            raise InputError(
                "This trace has no graph.",
                hint="Capture it: analyze trace MODEL.",
            )

        write_text(Path(path), to_node_link(self.graph))

    def __repr__(self) -> str:
        report = self.report
        return f"<{report.kind} of {report.target.text}: {report.answer[0]}>"

    def _repr_html_(self) -> str:
        from analyzer.report.page.build import render_inline

        return render_inline(self.report)


# a step of a difference
Side: TypeAlias = "tuple[ReportFile, Recording]"


@dataclass(frozen=True, eq=False)
class Diff(ReportOutput):
    """The difference of two steps at their peaks; the page shows ``newer``, the second, in full."""

    report: DiffFile
    newer: Side = field(repr=False)

    @property
    def growth_bytes(self) -> int:
        """Requested bytes by which the second peak is higher; negative if it is lower."""
        return self._requested.delta_bytes or 0

    @property
    def _requested(self) -> PeakOfBoth:
        return next(row for row in self.report.peak if row.number == "requested")

    def exceeds(self, allowed: str) -> str:
        """Return a sentence if the requested peak grew by more than ``allowed`` (5% or 100MiB)."""
        before = self._requested.a_bytes or 0
        if self.growth_bytes <= allowed_growth(allowed, before):
            return ""

        share = f" ({self.growth_bytes / before:+.1%})" if before else ""
        growth = format_bytes(self.growth_bytes)
        start = format_bytes(before)
        end = format_bytes(before + self.growth_bytes)

        return (
            f"The requested peak grew by {growth}{share}, from {start} to {end}; "
            f"the limit is {allowed.strip()}."
        )

    def to_html(self, path: StrPath) -> None:
        """Write the page of the second step, with the difference as its first view."""
        from analyzer.report.page.build import render

        write_text(Path(path), render(*self.newer, comparison=self.report))

    def to_markdown(self, path: StrPath) -> None:
        """Write a summary for a pull request."""
        from analyzer.report.diff_sections import diff_summary
        from analyzer.report.render.markdown import to_markdown

        summary = diff_summary(self.report, self.newer[0])
        write_text(Path(path), to_markdown(summary))

    def __repr__(self) -> str:
        return f"<difference: {self.report.headline}>"

    def _repr_html_(self) -> str:
        from analyzer.report.page.build import render_inline

        return render_inline(self.newer[0], comparison=self.report)


def build_diff(
    older: Side,
    newer: Side,
    *,
    names: Sequence[str | None] = (None, None),
) -> Diff:
    """Compare two steps; ``names`` are the user's names, such as paths; None to choose them."""
    from analyzer.explain.comparison import compare

    first, second = names
    labels = None

    if first is not None and second is not None and first != second:
        if Path(first).name != Path(second).name:
            first = Path(first).name
            second = Path(second).name

        labels = first, second
        kind = older[0].kind.basis
        newer_kind = newer[0].kind.basis
        if kind != newer_kind:
            labels = f"{first} ({kind})", f"{second} ({newer_kind})"

    return Diff(compare(*older, *newer, labels=labels), newer)


def allowed_growth(allowed: str, before_bytes: int) -> int:
    """Return an allowed growth in bytes: ``5%`` of ``before_bytes``, or a size; else raise."""
    text = allowed.strip()
    number = text.removesuffix("%").rstrip()

    is_number = number.replace(".", "", 1).isdecimal()
    if text.endswith("%") and is_number:
        return int(before_bytes * float(number) / 100)

    try:
        return parse_bytes(text)
    except InputError:
        raise InputError(
            f"{allowed!r} is neither a share nor a size.",
            hint="Write it as 5% or 5MiB.",
        ) from None
