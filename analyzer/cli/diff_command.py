"""``analyze diff A B``: compare two steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analyzer.cli.outputs import PageOutputs
from analyzer.model.errors import GrowthError, InputError
from analyzer.report.actions import suggest_next
from analyzer.report.diff_sections import allowed_growth, diff_document
from analyzer.session.public_calls import diff as compare


def diff(
    a: Path,
    b: Path,
    *,
    outputs: PageOutputs,
    markdown: Path | None = None,
    fail_on_increase: str | None = None,
) -> None:
    """Compare two steps: peaks, categories, layers and ops, from A to B."""
    outputs.check(a, b, others=[markdown])
    if fail_on_increase is not None:
        allowed_growth(fail_on_increase, 0)
    for path in (a, b):
        if not path.exists():
            hint = "Name a run folder, a logdir or an .xplane.pb."
            raise InputError(f"{path} does not exist.", hint=hint)
    difference = compare(a, b)
    outputs.show(
        difference.to_json,
        difference.to_html,
        lambda: replace(
            diff_document(difference.report), next_command=suggest_next(difference.newer[0])
        ),
        (markdown, difference.to_markdown),
    )
    if fail_on_increase and (excess := difference.exceeds(fail_on_increase)):
        raise GrowthError(excess)
