"""cuDNN's algorithms by the table: which are offered, how likely each is, and under which limit."""

import pytest

from analyzer.cards import find_gpu
from analyzer.simulate.kernels.convolution_on_card import PASSES, Convolution
from analyzer.simulate.kernels.cudnn_algorithms import find_offers

LIMIT = 8 << 30


def convolution(direction="forward", window=3, **options):
    shapes = {
        "image": (32, 64, 56, 56),
        "kernel": (128, window, window),
        "result": (56, 56),
    }
    return Convolution(**{"direction": direction, **shapes, **options})


def names(call, card="t4"):
    return {one.name for one in find_offers(call, find_gpu(card), LIMIT)}


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize(
    "card", ["p100-16gb-pcie", "t4", "a100-40gb-sxm", "h100-80gb-sxm"]
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_each_convolution_has_an_algorithm_without_workspace(direction, card, dtype):
    found = find_offers(convolution(direction, dtype=dtype), find_gpu(card), LIMIT)
    assert min(one.bytes for one in found) == 0


def test_winograd_has_filters_of_its_size_and_no_stride():
    assert "winograd-4x4" in names(convolution())
    assert "winograd-9x9" in names(convolution(window=5))
    assert not any("winograd" in name for name in names(convolution(window=7)))
    assert not any("winograd" in name for name in names(convolution(stride=2)))
    assert not any("winograd" in name for name in names(convolution(groups=4)))


def test_tensor_cores_compute_float16_from_volta_and_float32_from_ampere_on():
    half = convolution(dtype="float16")
    assert "winograd-4x4" in names(half, "p100-16gb-pcie")
    assert "tensor-cores" not in names(convolution())
    assert {"tensor-cores", "fft"} < names(half)
    assert "tensor-cores-three-copies" in names(convolution(), "a100-40gb-sxm")


def expected(call, card="h200-141gb-sxm"):
    found = find_offers(call, find_gpu(card), LIMIT)
    return min(found, key=lambda one: one.microseconds)


def test_tensor_cores_copy_tensors_with_channels_first_or_channels_that_are_no_multiple():
    x, y, w = 4 * 32 * 64 * 56 * 56, 4 * 32 * 128 * 56 * 56, 4 * 128 * 64 * 9
    assert expected(convolution()).bytes == x + y + w + 16
    assert expected(convolution(dtype="float16", channels_last=True)).bytes == 0
    odd = {"image": (32, 70, 56, 56), "dtype": "float16", "channels_last": True}
    padded = 2 * 32 * 72 * 56 * 56 + 2 * 128 * 72 * 9 + 16
    sizes = [
        one.bytes for one in find_offers(convolution(**odd), find_gpu("t4"), LIMIT)
    ]
    assert padded in sizes
    pointwise = convolution("filter_gradient", window=1)
    assert expected(pointwise).bytes == 32 * 4 * 128 * 64 + 16  # a sum for each example


def test_three_axes_have_no_workspace_without_tensor_cores():
    deep = convolution(
        image=(4, 16, 8, 24, 24), kernel=(32, 3, 3, 3), result=(8, 24, 24)
    )
    sizes = [one.bytes for one in find_offers(deep, find_gpu("t4"), LIMIT)]
    assert sizes == [0]


def test_a_limit_leaves_out_what_exceeds_it():
    free = find_offers(convolution(), find_gpu("t4"), LIMIT)
    largest = max(one.bytes for one in free)
    limited = find_offers(convolution(), find_gpu("t4"), largest - 1)
    assert [one.name for one in limited] == [
        one.name for one in free if one.bytes < largest
    ]
