"""TensorFlow's memory limit, against the limits that TensorFlow printed on real cards."""

from __future__ import annotations

import pytest

from analyzer.cards import (
    all_gpus,
    check_limit,
    context_bytes,
    find_gpu,
    memory_beside_pool,
    memory_limit,
    process_overhead,
)
from analyzer.cards.card_memory import system_reserve, usable_memory
from analyzer.model.errors import InputError

MIB = 1024**2


@pytest.mark.parametrize(
    ("card", "logged_mib"),
    [
        # "Created device ... with N MB memory" in public logs of TensorFlow 2.17 and later.
        ("t4", (13757, 13840, 13942)),
        ("v100-16gb-sxm", (14784,)),
        ("a100-40gb-sxm", (38482,)),
        ("h100-80gb-sxm", (78763,)),
        ("l4", (20967,)),
        ("rtx-3090", (22446, 22322)),
    ],
)
def test_the_limit_is_what_tensorflow_logged(card: str, logged_mib: tuple[int, ...]) -> None:
    limit = memory_limit(find_gpu(card))
    assert limit.bytes in limit.range
    for logged in logged_mib:
        assert limit.range.low <= (logged + 1) * MIB
        assert logged * MIB <= limit.range.high
        assert limit.bytes == pytest.approx(logged * MIB, rel=0.02)


@pytest.mark.parametrize(
    ("card", "logged_mib"),
    [
        # The same line in public logs of cards with a display, on Windows, in WSL, or idle.
        ("rtx-3090", (21342, 22289, 22455)),
        ("rtx-4090", (21286, 22288)),
        ("rtx-3080-10gb", (7417, 8056, 8066)),
        ("rtx-3080-ti", (9436,)),
        ("rtx-3070", (5450, 5468)),
        ("rtx-3060-12gb", (8755, 10258)),
        ("rtx-3060-ti", (5592,)),
        ("rtx-2060-super", (6005, 6100)),
        ("rtx-2070", (6007,)),
        ("rtx-2080-ti", (8963, 9454, 9629)),
        ("gtx-1080-ti", (9492, 10196, 10405)),
        ("gtx-1650", (2644, 2905)),
        ("rtx-4060-laptop", (5563,)),
        ("rtx-4070-super", (8698,)),
        ("rtx-5080", (11463,)),
    ],
)
def test_the_range_of_a_desktop_card_contains_what_tensorflow_logged(
    card: str, logged_mib: tuple[int, ...]
) -> None:
    limit = memory_limit(find_gpu(card))
    for logged in logged_mib:
        assert logged * MIB in limit.range, logged


def test_pool_and_the_memory_beside_it_are_on_the_card() -> None:
    for gpu in all_gpus():
        beside = memory_beside_pool(gpu)
        assert context_bytes() < beside <= process_overhead(gpu).bytes
        assert memory_limit(gpu).bytes + beside <= usable_memory(gpu).bytes


@pytest.mark.parametrize(
    ("free", "capability", "reserve_mib"),
    [
        (2047 * MIB, (9, 0), 225),
        (2048 * MIB, (6, 1), 500),
        (16000 * MIB, (7, 5), 1050),
        (40000 * MIB, (8, 9), 1536),
        (80000 * MIB, (9, 0), 1800),
        (30000 * MIB, (12, 0), 1800),
    ],
)
def test_the_reserve_follows_the_capability(
    free: int, capability: tuple[int, int], reserve_mib: int
) -> None:
    assert system_reserve(free, capability) == reserve_mib * MIB


def test_the_overhead_is_a_range_with_a_source() -> None:
    overhead = process_overhead(find_gpu("h100"))
    assert 0 < overhead.range.low < overhead.bytes < overhead.range.high
    assert overhead.source


def test_a_limit_above_what_a_card_has_free_is_refused_in_a_line() -> None:
    t4 = find_gpu("t4")
    check_limit(t4, None)
    check_limit(t4, memory_limit(t4).bytes)
    check_limit(t4, t4.memory_bytes - context_bytes(), context_bytes())
    with pytest.raises(InputError, match=r"--limit 20\.00 GiB exceeds the free memory of Tesla T4"):
        check_limit(t4, 20 << 30)
    with pytest.raises(InputError):
        check_limit(t4, t4.memory_bytes - context_bytes() + 1, context_bytes())
