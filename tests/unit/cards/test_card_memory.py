"""TensorFlow's memory limit, against the limits that TensorFlow printed on real cards."""

import statistics

import pytest

from analyzer.cards.catalogue import (
    all_gpus,
    check_limit,
    find_gpu,
    memory_beside_pool,
    memory_limit,
    process_overhead,
    system_reserve,
    usable_memory,
)
from analyzer.model.contract.child_messages import CONTEXT
from analyzer.model.errors import InputError

MIB = 1024**2


# "Created device ... with N MB memory" in public logs of TensorFlow 2.17 and later.
NVIDIA_LOGS = {
    "t4": (13757, 13840, 13942),
    "v100-16gb-sxm": (14784,),
    "a100-40gb-sxm": (38482,),
    "h100-80gb-sxm": (78763,),
    "l4": (20967,),
    "rtx-3090": (22446, 22322),
}
# The same line in public logs of TensorFlow-ROCm 2.9 to 2.20.
AMD_LOGS = {
    "mi60": (32252,),  # "Vega 20"
    "mi210": (63950,),
    "mi250x": (63592, 63828),
    "rx-5700": (7676,),
    "rx-6600-xt": (7556,),
    "rx-6700-xt": (11772,),
    "rx-7600": (7404,),
    "rx-7800-xt": (14643,),
    "rx-7900-xtx": (23448, 23466, 23470, 23512, 23986),
    "rx-9060-xt-16gb": (14518,),
}


@pytest.mark.parametrize(("logs", "share"), [(NVIDIA_LOGS, 0.02), (AMD_LOGS, 0.09)])
def test_the_limit_is_what_tensorflow_logged(
    logs: dict[str, tuple[int, ...]], share: float
) -> None:
    for card, logged_mib in logs.items():
        limit = memory_limit(find_gpu(card))
        assert limit.bytes in limit.range
        for logged in logged_mib:
            assert limit.range.low <= (logged + 1) * MIB, card
            assert logged * MIB <= limit.range.high, card
            assert limit.bytes == pytest.approx(logged * MIB, rel=share), card


# The same line in public logs of cards with a display, on Windows, in WSL, or idle.
GEFORCE_LOGS = {
    "gtx-1060-6gb": (4626, 5018),
    "gtx-1080": (6439, 6952),
    "gtx-1080-ti": (9492, 10196, 10405),
    "gtx-1650": (2644, 2905),
    "gtx-1660-ti": (3919, 4078),
    "rtx-2060": (3107, 3933, 3984, 4598),
    "rtx-2060-super": (6005, 6100),
    "rtx-2070": (6007, 6646),
    "rtx-2070-super": (4703, 5660, 5978, 6678),
    "rtx-2080": (5954,),
    "rtx-2080-super": (5941, 6086),
    "rtx-2080-ti": (8264, 8395, 8922, 8963, 9043, 9454, 9629, 9781),
    "rtx-3050-laptop": (1653, 1767, 2156),
    "rtx-3060-12gb": (8755, 9491, 9599, 9709, 10258),
    "rtx-3060-laptop": (3472, 3495, 3586, 3801, 4126),
    "rtx-3060-ti": (5480, 5592, 5748),
    "rtx-3070": (5450, 5468, 5578, 6017, 6033),
    "rtx-3070-laptop": (5471, 5595, 6124),
    "rtx-3070-ti": (3340, 6103),
    "rtx-3080-10gb": (7417, 7446, 8056, 8066),
    "rtx-3080-ti": (9298, 9436),
    "rtx-3090": (21342, 21770, 22182, 22289, 22455),
    "rtx-4060": (5814,),
    "rtx-4060-laptop": (4028, 5449, 5563),
    "rtx-4070": (6140,),
    "rtx-4070-laptop": (5412, 5993),
    "rtx-4070-super": (8698,),
    "rtx-4080": (11601, 13512),
    "rtx-4090": (21286, 22100, 22288),
    "rtx-4090-laptop": (13508,),
    "rtx-5070-ti": (13123,),
    "rtx-5080": (11463,),
    "rtx-5090": (29177,),
}
WORKSTATION_LOGS = {
    "quadro-rtx-4000": (6423,),
    "quadro-rtx-5000": (14045,),
    "quadro-rtx-6000": (22807,),
    "quadro-rtx-8000": (47168,),
    "rtx-a2000-12gb": (9712,),
    "rtx-a5000": (20953, 22233, 22476),
    "rtx-a6000": (46673, 46874),
}


@pytest.mark.parametrize("logs", [GEFORCE_LOGS, WORKSTATION_LOGS])
def test_the_range_of_a_class_of_cards_contains_nine_in_ten_logs(
    logs: dict[str, tuple[int, ...]],
) -> None:
    inside, ranges = [], []
    for card, logged_mib in logs.items():
        limit = memory_limit(find_gpu(card))
        inside += [logged * MIB in limit.range for logged in logged_mib]
        ranges.append(limit.range.width / limit.bytes)
    assert sum(inside) >= 0.9 * len(inside)
    assert statistics.median(ranges) < 0.27


def test_pool_and_the_memory_beside_it_are_on_the_card() -> None:
    for gpu in all_gpus():
        beside = memory_beside_pool(gpu)
        assert CONTEXT.usual < beside <= process_overhead(gpu)
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


def test_a_limit_above_what_a_card_has_free_is_refused_in_a_line() -> None:
    t4 = find_gpu("t4")
    check_limit(t4, None)
    check_limit(t4, memory_limit(t4).bytes)
    check_limit(t4, t4.memory_bytes - CONTEXT.usual, CONTEXT.usual)
    with pytest.raises(
        InputError, match=r"--limit 20\.00 GiB exceeds the free memory of Tesla T4"
    ):
        check_limit(t4, 20 << 30)
    with pytest.raises(InputError):
        check_limit(t4, t4.memory_bytes - CONTEXT.usual + 1, CONTEXT.usual)
