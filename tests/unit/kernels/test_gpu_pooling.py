"""Poolings over three axes on a card: copies in the layout that cuDNN is called in."""

import math

import pytest

from analyzer.cards import find_gpu
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels.gpu.gpu_kernels import gpu_device
from analyzer.simulate.kernels.shared.op_call import Call

T4, A100 = find_gpu("t4"), find_gpu("a100-40gb-sxm")
IMAGE, POOLED = (4, 16, 24, 24, 8), (4, 8, 12, 12, 8)
IMAGE_BYTES, POOLED_BYTES = 4 * math.prod(IMAGE), 4 * math.prod(POOLED)


def after_bytes(kind, inputs, output, *, layout="NDHWC", dtype="float32", card=T4):
    specs = tuple(TensorSpec(dtype, shape) for shape in inputs)
    op = Op(
        "op", kind, outputs=(TensorSpec(dtype, output),), attrs={"data_format": layout}
    )
    plan = gpu_device(card).plan(Call(op, specs, (None,) * len(specs)))
    assert plan.modelled
    return plan.after_bytes


@pytest.mark.parametrize("kind", ["MaxPool3D", "AvgPool3D"])
def test_a_pooling_works_on_copies_of_its_input_and_its_output(kind):
    assert after_bytes(kind, [IMAGE], POOLED) == (IMAGE_BYTES, POOLED_BYTES)
    assert after_bytes(kind, [IMAGE], POOLED, layout="NCDHW") == ()


def test_a_maximums_gradient_works_on_two_copies_of_each():
    inputs = [IMAGE, POOLED, POOLED]
    found = after_bytes("MaxPool3DGrad", inputs, IMAGE)
    assert found == (IMAGE_BYTES, POOLED_BYTES) * 2
    assert after_bytes("MaxPool3DGrad", inputs, IMAGE, layout="NCDHW") == ()


def test_an_averages_gradient_asks_for_what_cudnn_does_not_read_in_every_layout():
    inputs = [(5,), POOLED]
    assert (
        after_bytes("AvgPool3DGrad", inputs, IMAGE) == (IMAGE_BYTES, POOLED_BYTES) * 2
    )
    found = after_bytes("AvgPool3DGrad", inputs, IMAGE, layout="NCDHW")
    assert found == (IMAGE_BYTES, POOLED_BYTES)


def test_bfloat16_is_pooled_in_float32_where_the_card_does_not_know_it():
    cast = after_bytes("MaxPool3D", [IMAGE], POOLED, dtype="bfloat16")
    assert cast == (IMAGE_BYTES, POOLED_BYTES) * 2  # casts, then copies of them
    known = after_bytes("MaxPool3D", [IMAGE], POOLED, dtype="bfloat16", card=A100)
    assert known == (IMAGE_BYTES // 2, POOLED_BYTES // 2)
