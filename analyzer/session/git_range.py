"""Find the commit of a git range that changed the peak of a step most, by estimates of a few commits."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from msgspec import structs

from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import AnalyzerError, InputError
from analyzer.model.progress import listening
from analyzer.model.units import signed_bytes
from analyzer.report.diff_sections import Diff, build_diff
from analyzer.report.result import Result
from analyzer.session.target_results import estimate_target


def find_commit(
    revisions: str,
    target: str,
    folder: Path,
    batch_size: int | None,
    gpu: str,
) -> Diff:
    """Return the difference that one commit of ``OLD..NEW`` made; ``folder`` gets the estimates."""
    card, device = (find_gpu(gpu).id, "gpu") if gpu else ("", "cpu")
    options = CaptureOptions(batch_size=batch_size, gpu=card, device=device)

    @cache
    def estimate_at(commit: str) -> Result:
        def show(stage: str, share: float | None) -> None:
            outer(f"{commit[:10]}: {stage}", share)

        out = folder / f"{commit}-estimate"
        with listening(show) as outer, _check_out(commit, folder / commit):
            return estimate_target(parse_target(target), options, out)

    def grow(older: str, newer: str) -> int:
        before = estimate_at(older).report
        after = estimate_at(newer).report
        return after.peak.requested_bytes - before.peak.requested_bytes

    old, _, new = revisions.partition("..")
    first = _git("rev-parse", f"{old or 'HEAD'}^0")
    last = _git("rev-parse", f"{new or 'HEAD'}^0")

    log = _git("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
    if not log:
        raise InputError(f"{revisions} holds no commit.", hint="Write it as OLD..NEW.")

    total = grow(first, last)
    (older, newer), failed = _bisect([first, *log], grow)
    before = estimate_at(older)
    after = estimate_at(newer)
    found = build_diff(
        (before.report, before.recording),
        (after.report, after.recording),
        names=[older[:10], newer[:10]],
    )

    notes = [
        f"{len(log)} commits changed the requested peak by {signed_bytes(total)} in all."
    ]
    if failed:
        notes.append(f"{failed} of them could not be estimated; one may be the cause.")

    subject = _git("show", "--no-patch", "--format=%s (%an, %as)", newer)
    headline = f"{newer[:10]} {subject}: {found.report.headline}"

    whole = structs.replace(
        found.report,
        headline=headline,
        notes=(*notes, *found.report.notes),
    )

    return replace(found, report=whole)


@contextmanager
def _check_out(commit: str, place: Path) -> Iterator[None]:
    """Work in a checkout of a commit, in the folder that the command was started in."""
    here = Path.cwd()
    _git("worktree", "add", "--quiet", "--detach", str(place), commit)

    try:
        os.chdir(place / _git("rev-parse", "--show-prefix"))  # for its own modules
        yield
    finally:
        os.chdir(here)
        _git("worktree", "remove", "--force", str(place))


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
            ["git", *words],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise InputError(
            f"git {words[0]}: {last}.",
            hint="Run it in the repository.",
        ) from None

    return done.stdout.strip()
