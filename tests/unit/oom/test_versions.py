"""The same pool in the words of every release gives the same figures, whole, cut or doubled."""

import io

import pytest
from unit.oom.dump_wordings import FULL, PIECES, VERSIONS, Scene, log_of

from analyzer.model.contract.oom_file import OomFailure
from analyzer.oom import OomReport, read_oom_log

SCENES = pytest.mark.parametrize("scene", [PIECES, FULL])
EVERY_VERSION = pytest.mark.parametrize("version", VERSIONS)


def report(text: str) -> OomReport:
    return read_oom_log(io.BytesIO(text.encode()), "a log")


def truth_of(scene: Scene) -> dict[str, int]:
    """Return the figures of a scene, counted from its chunks."""
    return {
        "in_use_bytes": scene.in_use,
        "pool_bytes": scene.pool,
        "free_bytes": scene.pool - scene.in_use,
        "largest_hole_bytes": scene.largest_hole,
        "limit_bytes": scene.limit,
        "waste_bytes": scene.waste,
    }


def check_ranges(failure: OomFailure, scene: Scene) -> None:
    """Check that no figure contradicts the scene."""
    for name, value in truth_of(scene).items():
        size = getattr(failure, name)
        low, high = failure.ranges.get(name, (size, size))
        assert size is None or low <= value <= high, name


@SCENES
@EVERY_VERSION
def test_figures_are_those_of_the_pool(scene: Scene, version: str) -> None:
    (failure,) = report(log_of(scene, version)).report.failures
    check_ranges(failure, scene)
    assert (failure.asked.requested_bytes, failure.asked.is_exact) == (
        scene.asked,
        True,
    )
    assert failure.op == scene.op
    assert str(failure.source).endswith("train.py:42")
    assert failure.verdict.id == ("fragmented" if scene is PIECES else "full")
    exact = ("in_use_bytes", "pool_bytes", "free_bytes", "largest_hole_bytes")
    assert not set(exact) & set(failure.ranges)
    has_hint = any("cuda_malloc_async" in remedy.action for remedy in failure.remedies)
    assert has_hint == (scene is PIECES)


@SCENES
@EVERY_VERSION
def test_a_log_cut_at_any_line_states_nothing_false(scene: Scene, version: str) -> None:
    lines = log_of(scene, version).splitlines(keepends=True)
    (whole,) = report("".join(lines)).report.failures
    for count in range(1, len(lines)):
        for failure in report("".join(lines[:count])).report.failures:
            check_ranges(failure, scene)
            assert failure.verdict.id in ("cannot-tell", "full", whole.verdict.id)
        if version == "2.21":
            continue  # its sums are rounded, so a list without its first rows may agree with them
        for failure in report("".join(lines[count:])).report.failures:
            check_ranges(failure, scene)


def test_warnings_alone_leave_the_map() -> None:
    (failure,) = report(
        log_of(PIECES, "2.9", with_text=False, level="W")
    ).report.failures
    assert failure.verdict.id == "cannot-tell"
    assert "of the pool was free" in failure.verdict.title
    assert any("TF_CPP_MIN_LOG_LEVEL" in line for line in failure.verdict.missing)
    assert failure.asked.low_bytes <= PIECES.asked <= failure.asked.high_bytes
