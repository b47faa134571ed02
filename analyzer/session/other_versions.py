"""Compare the estimates of a target in two Python environments, or at commits of a git range."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from msgspec import structs

from analyzer.model.errors import AnalyzerError, ExitCode, InputError
from analyzer.model.progress import report_stage
from analyzer.model.units import signed_bytes
from analyzer.report.result import Diff, Result, build_diff
from analyzer.session.opening import open_result
from analyzer.session.target_results import diff

_PACKAGES = Path(__file__).parents[2]  # the folder of this package


def compare_environments(
    target: str,
    pythons: Sequence[str],
    options: Sequence[str],
    folder: Path,
) -> Diff:
    """Return the difference between a target's estimates by two interpreters.

    Both run this version of the package. ``folder`` gets the estimates.
    """
    estimates = []
    for place, python in enumerate(pythons):
        report_stage(f"estimating with {python}", place / 2)

        # of ENVIRONMENT/bin/python
        environment = Path(python).absolute().parents[1].name
        out = folder / str(place) / environment
        out.parent.mkdir()
        _estimate(python, target, options, out)
        estimates.append(out)

    return diff(*estimates)


def find_commit(
    revisions: str,
    target: str,
    options: Sequence[str],
    folder: Path,
) -> Diff:
    """Return the difference that one commit of ``OLD..NEW`` made; ``folder`` gets the estimates."""

    @cache
    def estimate_at(commit: str) -> Result:
        report_stage(f"estimating {commit[:10]}")
        out = folder / f"{commit}-estimate"
        with _check_out(commit, folder / commit):
            _estimate(sys.executable, target, options, out)

        return open_result(out)

    def grow(older: str, newer: str) -> int:
        before = estimate_at(older).report
        after = estimate_at(newer).report
        return after.peak.requested_bytes - before.peak.requested_bytes

    old, _, new = revisions.partition("..")
    first = _git("rev-parse", f"{old or 'HEAD'}^0")
    last = _git("rev-parse", f"{new or 'HEAD'}^0")

    log = _git("rev-list", "--reverse", "--first-parent", f"{first}..{last}").split()
    if not log:
        raise InputError(f"{revisions} holds no commit.", "Write it as OLD..NEW.")

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
        f"Commits: {len(log)}. They changed the requested peak by {signed_bytes(total)}."
    ]
    if failed:
        notes.append(f"{failed} of them could not be estimated; one may be the cause.")

    subject = _git("show", "--no-patch", "--format=%s (%an, %as)", newer)
    whole = structs.replace(
        found.report,
        headline=f"{newer[:10]} {subject}: {found.report.headline}",
        notes=(*notes, *found.report.notes),
    )

    return replace(found, report=whole)


def _estimate(python: str, target: str, options: Sequence[str], out: Path) -> None:
    """Estimate a target with an interpreter; InputError with its last line if it fails."""
    words = ("estimate", target, "--quiet", *options, "--out", str(out))
    path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))

    try:
        done = subprocess.run(
            (python, "-m", "analyzer", *words),
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise InputError(
            f"{python} cannot be run: {error.strerror}.",
            "Name the interpreter of the environment: .venv/bin/python.",
        ) from None

    if done.returncode not in (ExitCode.OK, ExitCode.OVER_LIMIT):
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(
            f"The estimate with {python} failed: {lines[-1].removeprefix('analyze: ')[:300]}",
            "Run it there. tf-memory-analyzer must be installed in that environment.",
        )


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
            "Run it in the repository.",
        ) from None

    return done.stdout.strip()
