"""cuDNN's algorithms by the table: which are offered, how likely each is, and under which limit."""

import pytest

from analyzer.cards.catalogue import find_gpu
from analyzer.simulate.kernels.cudnn_algorithms import PASSES, Convolution, find_offers

LIMIT = 8 << 30


def convolution(direction="forward", window=3, **options):
    shapes = {
        "image": (32, 64, 56, 56),
        "kernel": (128, window, window),
        "result": (56, 56),
    }
    return Convolution(**{"direction": direction, **shapes, **options})


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize(
    "card", ["p100-16gb-pcie", "t4", "a100-40gb-sxm", "h100-80gb-sxm"]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_each_convolution_has_an_algorithm_without_workspace(direction, card, dtype):
    found = find_offers(convolution(direction, dtype=dtype), find_gpu(card), LIMIT)
    assert min(one.bytes for one in found) == 0


def test_a_limit_leaves_out_what_exceeds_it():
    free = find_offers(convolution(), find_gpu("t4"), LIMIT)
    largest = max(one.bytes for one in free)
    limited = find_offers(convolution(), find_gpu("t4"), largest - 1)
    assert [one.name for one in limited] == [
        one.name for one in free if one.bytes < largest
    ]
