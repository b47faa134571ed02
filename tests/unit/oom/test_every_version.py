"""The same failure in the words of every version gives the same figures."""

from __future__ import annotations

import io

import pytest
from unit.oom.dump_wordings import VERSIONS, Scene, log_of

from analyzer.oom import OomReport, read_oom_log

MIB = 1 << 20

PIECES = Scene(
    regions=(
        (
            (1280, 1000),
            (3 * MIB, 3 * MIB),
            (3 * MIB, None),
            *(((2 * MIB + 256), 2 * MIB - 77), (5 * MIB + 512, None)) * 6,
            (64 * MIB, 64 * MIB),
        ),
        ((16 * MIB, 12 * MIB), (7 * MIB, None)),
    ),
    shape=(16, 225, 225, 3),
    limit=128 * MIB + 771,
)
"""A pool of two regions with 40 MiB free and no hole over 7 MiB, for a request of 9.27 MiB; the limit
leaves less than that."""

FULL = Scene(
    regions=(((1280, 1024), (90 * MIB, 90 * MIB), (100 * MIB - 1280, 80 * MIB), (10 * MIB, None)),),
    shape=(128, 225, 225, 3),
    limit=200 * MIB,
)


def report(text: str) -> OomReport:
    return read_oom_log(io.BytesIO(text.encode()), "a log")


@pytest.mark.parametrize("start", ["memory_limit_", "Stats:"])
def test_an_excerpt_of_the_end_of_a_dump_has_the_limit(start: str) -> None:
    lines = log_of(PIECES, "2.9").splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if start in line)
    (failure,) = report("".join(lines[first:])).document.failures
    assert failure.limit_bytes == PIECES.limit
    assert failure.in_use_bytes == PIECES.in_use
    assert failure.verdict.id == "fragmented"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scene", [PIECES, FULL], ids=["pieces", "full"])
def test_figures_are_those_of_the_pool(scene: Scene, version: str) -> None:
    (failure,) = report(log_of(scene, version)).document.failures
    assert failure.asked is not None
    assert failure.asked.requested_bytes == scene.asked
    assert failure.asked.is_exact
    assert failure.asked.shape == scene.shape
    assert failure.asked.dtype == "float32"
    assert failure.op == scene.op
    assert failure.in_use_bytes == scene.in_use
    assert failure.pool_bytes == scene.pool
    assert failure.free_bytes == scene.pool - scene.in_use
    assert failure.largest_hole_bytes == scene.largest_hole
    low, high = failure.ranges.get("limit_bytes", (scene.limit, scene.limit))
    assert low <= scene.limit <= high
    assert high - low < 16384
    assert failure.told > 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_verdict_is_the_same_in_every_version(version: str) -> None:
    pieces, full = (report(log_of(scene, version)).document.failures[0] for scene in (PIECES, FULL))
    assert pieces.verdict.id == "fragmented"
    assert any("cuda_malloc_async" in remedy.action for remedy in pieces.remedies)
    assert full.verdict.id in ("full", "wasted-in-chunks")
    assert not any("cuda_malloc_async" in remedy.action for remedy in full.remedies)


@pytest.mark.parametrize("version", VERSIONS)
def test_waste_is_known_where_the_dump_tells_it(version: str) -> None:
    (failure,) = report(log_of(FULL, version)).document.failures
    true = 100 * MIB - 1280 - 80 * MIB + 256
    low, high = failure.ranges["waste_bytes"]
    assert low <= true <= high


@pytest.mark.parametrize("version", VERSIONS)
def test_two_failures_are_two(version: str) -> None:
    text = log_of(PIECES, version) + "epoch 2\n" + log_of(FULL, version)
    first, second = report(text).document.failures
    assert first.asked is not None
    assert second.asked is not None
    assert (first.asked.requested_bytes, second.asked.requested_bytes) == (PIECES.asked, FULL.asked)
    assert (first.in_use_bytes, second.in_use_bytes) == (PIECES.in_use, FULL.in_use)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cut_log_gives_what_it_can(version: str) -> None:
    text = log_of(PIECES, version)
    for share in range(5, 100, 10):
        document = report(text[: len(text) * share // 100]).document
        for failure in document.failures:
            assert failure.largest_hole_bytes in (None, PIECES.largest_hole) or failure.ranges
            assert failure.in_use_bytes in (None, PIECES.in_use) or "in_use_bytes" in failure.ranges
        begun = report(text[len(text) * share // 100 :]).document
        for failure in begun.failures:
            if failure.asked is not None and failure.asked.is_exact:
                assert failure.asked.requested_bytes == PIECES.asked


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scene", [PIECES, FULL], ids=["pieces", "full"])
def test_a_log_cut_at_any_line_states_nothing_false(scene: Scene, version: str) -> None:
    lines = log_of(scene, version).splitlines(keepends=True)
    (whole,) = report("".join(lines)).document.failures
    truth = {
        "in_use_bytes": scene.in_use,
        "pool_bytes": scene.pool,
        "free_bytes": scene.pool - scene.in_use,
        "largest_hole_bytes": scene.largest_hole,
    }
    for count in range(1, len(lines)):
        for failure in report("".join(lines[:count])).document.failures:
            assert failure.verdict.id in ("cannot-tell", whole.verdict.id, "full")
            for name, value in truth.items():
                told = getattr(failure, name)
                low, high = failure.ranges.get(name, (told, told))
                assert told is None or low <= value <= high, (count, name, told)


def test_a_request_larger_than_a_pool_without_a_known_limit_is_left_open() -> None:
    small = Scene(
        regions=(((256, 4), (2 * MIB - 256, None)),), shape=(77, 1024, 1024), limit=250 * MIB
    )
    text = log_of(small, "2.21")
    (failure,) = report(text[: text.index("Sum Total")]).document.failures
    assert failure.verdict.id == "cannot-tell"
    assert "more than the whole pool so far (2.00 MiB)" in failure.verdict.title


def test_a_request_made_again_in_the_same_state_without_an_error_counts_once() -> None:
    once = log_of(FULL, "2.21", with_text=False)
    later = once.replace("1795324024.", "1795324034.")
    assert later != once
    (failure,) = report(once + later).document.failures
    assert failure.told == 2
    others = log_of(PIECES, "2.21", with_text=False)
    assert len(report(once + others + later).document.failures) == 3


def test_without_the_text_the_size_is_known_to_256_bytes() -> None:
    (failure,) = report(log_of(PIECES, "2.9", with_text=False)).document.failures
    assert failure.asked is not None
    assert failure.asked.rounded_bytes == PIECES.rounded
    assert failure.asked.low_bytes <= PIECES.asked <= failure.asked.high_bytes
    assert failure.op == PIECES.op
    assert any("OOM when allocating" in line for line in failure.verdict.missing)


def test_warnings_alone_leave_the_map() -> None:
    (failure,) = report(log_of(PIECES, "2.9", level="W")).document.failures
    assert failure.verdict.id == "cannot-tell"
    assert "of the pool was free" in failure.verdict.title
    assert any("TF_CPP_MIN_LOG_LEVEL" in line for line in failure.verdict.missing)
