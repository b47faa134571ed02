"""Compare the estimates of a target in two Python environments, as before and after an upgrade."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from analyzer.model.errors import ExitCode, InputError
from analyzer.model.progress import report_stage
from analyzer.report.diff_sections import Diff
from analyzer.session.public_calls import diff

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
        _estimate(python, target, [*options, "--out", str(out)])
        estimates.append(out)

    return diff(*estimates)


def _estimate(python: str, target: str, options: Sequence[str]) -> None:
    """Estimate a target with another interpreter; InputError with its last line if it fails."""
    command = (python, "-m", "analyzer", "estimate", target, "--quiet", *options)
    path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))

    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise InputError(
            f"{python} cannot be run: {error.strerror}.",
            hint="Name the interpreter of the environment: .venv/bin/python.",
        ) from None

    if done.returncode not in (ExitCode.OK, ExitCode.OVER_LIMIT):
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise InputError(
            f"The estimate with {python} failed: {lines[-1][:300]}",
            hint="Install tf-memory-analyzer in that environment too.",
        )
