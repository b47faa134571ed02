"""Find the commit of a git range that changed the peak of a step most, by estimates of a few commits."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from msgspec import structs

from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import AnalyzerError, InputError
from analyzer.model.units import signed_bytes
from analyzer.report.diff_sections import Diff, build_diff
from analyzer.report.result import Result
from analyzer.session.opening import Progress
from analyzer.session.target_results import estimate_target


def find_commit(
    revisions: str,
    target: str,
    folder: Path,
    report: Progress,
    batch_size: int | None,
    gpu: str,
) -> Diff:
    """Return the difference that one commit of ``OLD..NEW`` made; ``folder`` gets the estimates."""
    card, device = (find_gpu(gpu).id, "gpu") if gpu else ("", "cpu")
    options = CaptureOptions(batch_size=batch_size, gpu=card, device=device)

    @cache
    def estimate_at(commit: str) -> Result:
        place, here = folder / commit, Path.cwd()
        _git("worktree", "add", "--quiet", "--detach", str(place), commit)

        try:
            # for the commit's own modules
            os.chdir(place / _git("rev-parse", "--show-prefix"))
            return estimate_target(
                parse_target(target),
                options,
                folder / f"{commit}-estimate",
                progress=lambda stage, share: report(f"{commit[:10]}: {stage}", share),
            )
        finally:
            os.chdir(here)
            _git("worktree", "remove", "--force", str(place))

    def grow(older: str, newer: str) -> int:
        peaks = [estimate_at(one).report.peak.requested_bytes for one in (older, newer)]
        return peaks[1] - peaks[0]

    first, last = (
        _git("rev-parse", f"{one or 'HEAD'}^0") for one in revisions.split("..", 1)
    )
    log = _git("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()

    if not log:
        raise InputError(f"{revisions} holds no commit.", hint="Write it as OLD..NEW.")

    total = grow(first, last)
    commits, failed = _bisect([first, *log], grow)
    older, newer = ((one.report, one.recording) for one in map(estimate_at, commits))
    found = build_diff(older, newer, names=[one[:10] for one in commits])
    notes = (
        f"{len(log)} commits changed the requested peak by {signed_bytes(total)} in all.",
        *[f"{failed} of them could not be estimated; one may be the cause."]
        * bool(failed),
        *found.report.notes,
    )
    subject = _git("show", "--no-patch", "--format=%s (%an, %as)", commits[1])
    headline = f"{commits[1][:10]} {subject}: {found.report.headline}"

    return replace(
        found, report=structs.replace(found.report, headline=headline, notes=notes)
    )


def _bisect(
    commits: list[str], grow: Callable[[str, str], int]
) -> tuple[list[str], int]:
    """Return the neighbours between which the peak changes most, and the failed commits.

    ``grow`` returns the growth in bytes between two commits. If a commit cannot be estimated, its
    neighbours decide.
    """
    failed = 0
    while len(commits) > 2:
        middle = len(commits) // 2
        try:
            before = grow(commits[0], commits[middle])
            after = grow(commits[middle], commits[-1])
        except AnalyzerError:
            del commits[middle]
            failed += 1
            continue

        is_before = abs(before) >= abs(after)
        commits = commits[: middle + 1] if is_before else commits[middle:]

    return commits, failed


def _git(*words: str) -> str:
    """Return the output of git."""
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise InputError(
            f"git {words[0]}: {last}.", hint="Run it in the repository."
        ) from None

    return done.stdout.strip()
