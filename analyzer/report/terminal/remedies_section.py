"""Old name of the section of remedies, until fit builds a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from analyzer.model.contract.report.finding import StepRemedy
from analyzer.report.render.terminal import section_parts
from analyzer.report.report_sections import remedies_sections


def remedies_section(remedies: Sequence[StepRemedy], of: str = "") -> Iterator[RenderableType]:
    """Yield the section of the remedies."""
    for section in remedies_sections(remedies, of):
        yield from section_parts(section, 100)
