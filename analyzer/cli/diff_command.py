"""``analyze diff A B``: compare two steps."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from analyzer.cli.outputs import PageOutputs
from analyzer.cli.shared_options import (
    STEP,
    BatchSize,
    Markdown,
    argument,
    option,
    refuse_options,
)
from analyzer.cli.stdout import progress_bar
from analyzer.model.errors import GrowthError, InputError
from analyzer.report.actions import step_options
from analyzer.report.diff_sections import diff_document
from analyzer.report.result import Diff, allowed_growth
from analyzer.session.target_results import diff as compare

_Older = Annotated[
    Path,
    argument(
        "The older run folder, logdir or .xplane.pb; or a git range, such as "
        "v1..HEAD; or with --python the target.",
        metavar="A",
    ),
]
_Newer = Annotated[
    Path | None,
    argument(
        "The newer one; with a git range, the target to estimate, such as "
        "train.py:build_model.",
        metavar="B",
    ),
]
_Pythons = Annotated[
    list[str] | None,
    option(
        "Given twice, with a target as A: estimate it with the older and with the "
        "newer interpreter, such as old/bin/python and new/bin/python.",
        "--python",
        panel=STEP,
        metavar="PYTHON",
    ),
]


def diff(
    a: _Older,
    b: _Newer = None,
    *,
    outputs: PageOutputs,
    markdown: Markdown = None,
    fail_on_increase: Annotated[
        str | None,
        option(
            "Exit with 4 if the requested peak grew by more than this, such as 5% or 100MiB."
        ),
    ] = None,
    batch_size: BatchSize = None,
    gpu: Annotated[
        str,
        option(
            "With a git range or --python: the card to estimate for, such as t4; "
            "default the CPU.",
            panel=STEP,
        ),
    ] = "",
    python: _Pythons = None,
) -> None:
    """Compare two steps, or find the commit that changed a step's peak most.

    With a git range as A (v1..HEAD) and a target as B (train.py:build_model), it estimates the target at
    a few commits and compares the commit that changed the peak most with the one before it.

    With --python OLD --python NEW and a target, it compares the target in two environments.
    """
    outputs.check(a, *filter(None, (b,)), others=[markdown])
    if fail_on_increase is not None:
        allowed_growth(fail_on_increase, 0)

    with TemporaryDirectory() as folder:
        with progress_bar(outputs.progress):
            difference = _find_difference(a, b, python, batch_size, gpu, Path(folder))

        outputs.show(
            difference.to_json,
            difference.to_html,
            lambda: diff_document(difference.report),
            (markdown, difference.to_markdown),
        )

    if fail_on_increase and (excess := difference.exceeds(fail_on_increase)):
        raise GrowthError(excess)


def _find_difference(
    a: Path,
    b: Path | None,
    pythons: Sequence[str] | None,
    batch_size: int | None,
    gpu: str,
    folder: Path,
) -> Diff:
    """Return the difference between two runs, two environments, or the commits of a range."""
    given = step_options(batch_size, "", gpu)

    if b is None and pythons is not None and len(pythons) == 2:
        from analyzer.session.other_versions import compare_environments

        return compare_environments(str(a), pythons, given, folder)

    if b is None or pythons:
        raise InputError(
            "Two steps are needed: A and B, or a target and --python twice.",
            "analyze diff train.py:build --python OLD --python NEW",
        )

    if ".." in a.name and not a.exists():
        from analyzer.session.other_versions import find_commit

        return find_commit(str(a), str(b), given, folder)

    refuse_options(
        "needs a git range: analyze diff v1..HEAD train.py:build_model",
        "Leave it out.",
        batch_size=batch_size,
        gpu=gpu,
    )

    for path in (a, b):
        if not path.exists():
            hint = "Name a run folder, a logdir, an .xplane.pb, or a git range and a target."
            raise InputError(f"{path} does not exist.", hint)

    return compare(a, b)
