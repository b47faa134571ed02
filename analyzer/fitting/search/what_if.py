"""An estimate with the remedies that were asked for: ``analyze estimate --what-if``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec.structs import replace as changed

from analyzer.fitting.search.remedied_steps import tried_remedies
from analyzer.fitting.search.remedy_plans import NAMES
from analyzer.fitting.search.step_access import access_of
from analyzer.model.contract.capture_request import CaptureOptions, TargetSpec
from analyzer.model.errors import InputError
from analyzer.report.result import Result
from analyzer.session.target_results import leave_report

_STEPS_PER_EXECUTION: Final = "steps-per-execution"

ALL: Final = "all"
"""What names every remedy that may save something."""


def names_in(text: str) -> tuple[str, ...] | None:
    """Return the remedies that a comma-separated list names; none for all, None for an empty list.

    Raises:
        InputError: no step has a remedy of a name.
    """
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if not names:
        return None
    if names == (ALL,):
        return ()
    for name in names:
        if name.replace("_", "-") == _STEPS_PER_EXECUTION:
            raise InputError(
                f"{name} saves no memory: steps of one execution run one after another, so the peak "
                "is that of one step.",
                hint="Beside it lie the batches that wait for the others.",
            )
        if name not in NAMES:
            raise InputError(
                f"No remedy is called {name!r}.", hint=f"There are: all, or {', '.join(NAMES)}."
            )
    return names


def with_remedies(
    result: Result,
    spec: TargetSpec,
    options: CaptureOptions,
    names: Sequence[str],
    folder: Path,
    *,
    threads: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Result:
    """Return an estimate with what remedies of its step save, and leave it in the estimate's folder.

    Args:
        result: The estimate.
        spec: Its target.
        options: How its step is made.
        names: The remedies; empty for all that may save something.
        folder: Where the estimate lies.
        threads: Threads that one op may use; None for this machine's.
        progress: Called with the stage and the share done.

    Raises:
        InputError: a name is no remedy's.
    """
    verdict = result.report.verdict
    limit_bytes = None if verdict is None else verdict.limit_bytes
    report = progress or (lambda stage, share: None)
    with access_of(spec) as access:
        remedies = tried_remedies(access, options, names, limit_bytes, threads, report, folder)
    told = replace(result, report=changed(result.report, remedies=remedies))
    return leave_report(told, folder)
