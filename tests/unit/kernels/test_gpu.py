"""What one run of a GPU kernel does to the card's memory, by the rules of TensorFlow's source."""

from collections import Counter
from itertools import chain

import pytest

from analyzer.cards.catalogue import find_gpu
from analyzer.model.contract.run_note import Op, TensorSpec, read_op_types
from analyzer.simulate.kernels import cpu_kernels
from analyzer.simulate.kernels.cpu_kernels import Call, Way
from analyzer.simulate.kernels.gpu_kernels import gpu_device

T4, A100 = find_gpu("t4"), find_gpu("a100-40gb-sxm")


def call(kind, inputs, outputs, *, dtype="float32", out_dtype=None, **attrs):
    op = Op(
        "op",
        kind,
        outputs=tuple(TensorSpec(out_dtype or dtype, shape) for shape in outputs),
        attrs=attrs,
    )
    specs = tuple(
        x if isinstance(x, TensorSpec) else TensorSpec(dtype, x) for x in inputs
    )
    return Call(op, specs)


@pytest.mark.parametrize("file", ["op_types", "card_op_types"])
def test_each_op_type_is_in_one_row(file):
    rows = read_op_types(f"simulate/kernels/{file}.toml")["types"].values()
    counts = Counter(chain.from_iterable(rows))
    assert [kind for kind, count in counts.items() if count > 1] == []


def test_each_row_has_a_rule():
    rows = read_op_types("simulate/kernels/op_types.toml")["types"].values()
    assert {kind for row in rows for kind in row} <= set(cpu_kernels._RULES)


def plan(*arguments, card=T4, **options):
    return gpu_device(card).plan(call(*arguments, **options))


def size(*shape, item_bytes=4):
    total = item_bytes
    for axis in shape:
        total *= axis
    return total


CONV = {"strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "padding": "SAME"}
NCHW = {**CONV, "data_format": "NCHW"}
NHWC = {**CONV, "data_format": "NHWC"}
FILTER = size(3, 3, 16, 32)
IMAGE, RESULT = size(8, 28, 28, 16), size(8, 28, 28, 32)
FIRST = [(8, 16, 28, 28), (3, 3, 16, 32)], [(8, 32, 28, 28)]  # channels first
LAST = [(8, 28, 28, 16), (3, 3, 16, 32)], [(8, 28, 28, 32)]


def test_a_convolution_copies_its_filter_into_cudnns_order():
    found = plan("Conv2D", *FIRST, **NCHW)
    assert found.outputs[0].size_bytes == RESULT
    assert found.after_bytes == (FILTER,)
    assert found.modelled


def test_a_convolution_on_an_amd_card_has_no_workspace_of_cudnn():
    found = plan("Conv2D", *LAST, card=find_gpu("mi210"), **NHWC)
    assert not any(found.workspaces_bytes)


def test_channels_last_is_copied_where_cudnn_computes_in_nchw():
    assert plan("Conv2D", *LAST, **NHWC).after_bytes == (IMAGE, FILTER, RESULT)
    # Tensor cores take float32 (as TF32) in NHWC from Ampere on, float16 from Volta on.
    assert plan("Conv2D", *LAST, card=A100, **NHWC).after_bytes == (FILTER,)
    half = plan("Conv2D", *LAST, dtype="float16", **NHWC)
    assert half.after_bytes == (FILTER // 2,)


@pytest.mark.parametrize(
    ("window", "padding", "out"),
    [((1, 1), "SAME", (28, 28)), ((28, 28), "VALID", (1, 1))],
)
def test_a_convolution_that_is_a_product_needs_no_copies(window, padding, out):
    shapes = [(8, 28, 28, 16), (*window, 16, 32)], [(8, *out, 32)]
    assert plan("Conv2D", *shapes, **{**NHWC, "padding": padding}).after_bytes == ()


def test_uneven_padding_copies_the_image():
    strides = {**NCHW, "strides": [1, 1, 2, 2]}
    found = plan(
        "Conv2D", [(8, 16, 28, 28), (3, 3, 16, 32)], [(8, 32, 14, 14)], **strides
    )
    assert found.after_bytes == (size(8, 16, 29, 29), FILTER)


def test_the_inputs_gradient_is_made_beside_the_output():
    shapes = [(4,), (3, 3, 16, 32), (8, 32, 28, 28)], [(8, 16, 28, 28)]
    found = plan("Conv2DBackpropInput", *shapes, **NCHW)
    # The output's own buffer goes when the one that was computed into becomes the output.
    assert found.before_bytes == (IMAGE, FILTER)
    assert found.outputs[0].size_bytes == IMAGE
    last = [(4,), (3, 3, 16, 32), (8, 28, 28, 32)], [(8, 28, 28, 16)]
    turned = plan("Conv2DBackpropInput", *last, **NHWC)
    assert turned.after_bytes == (FILTER, RESULT, IMAGE)


def test_the_filters_gradient_is_made_in_cudnns_order():
    shapes = [(8, 16, 28, 28), (4,), (8, 32, 28, 28)], [(3, 3, 16, 32)]
    found = plan("Conv2DBackpropFilter", *shapes, **NCHW)
    assert found.after_bytes == (FILTER,)
    last = [(8, 28, 28, 16), (4,), (8, 28, 28, 32)], [(3, 3, 16, 32)]
    found = plan("Conv2DBackpropFilter", *last, **NHWC)
    assert found.after_bytes == (FILTER, RESULT, IMAGE)


@pytest.mark.parametrize(
    ("mode", "batch", "time", "depth", "units", "weights", "workspace", "reserve"),
    [  # rows of an H200 with TensorFlow 2.21 and cuDNN 9.19
        ("lstm", 64, 200, 256, 256, 526_336, 89_850_624, 65_536_256),
        ("lstm", 64, 200, 512, 256, 788_480, 130_220_800, 65_536_256),
        ("gru", 64, 30, 96, 96, 55_872, 13_157_120, 4_423_936),
    ],
)
def test_a_recurrent_layer_takes_the_measured_memory(
    mode, batch, time, depth, units, weights, workspace, reserve
):
    states = [(batch, time, units), (batch, 1, units), (batch, 1, units)]
    inputs = [(batch, time, depth), *states[1:], (weights,), (batch,)]
    arguments = ("CudnnRNNV3", inputs, [*states, None, None])
    found = plan(*arguments, rnn_mode=mode, is_training=True)
    assert found.outputs[3].size_bytes == pytest.approx(reserve, abs=4 * batch)
    assert found.outputs[4].way is Way.NONE
    assert found.after_bytes == (pytest.approx(workspace, rel=0.01),)
    idle = plan(*arguments, rnn_mode=mode, is_training=False)
    assert idle.outputs[3].size_bytes == 0


def test_the_reserve_space_of_batch_norm_takes_no_memory():
    """Traces of real cards have no allocation for it; its shape is unknown in the graph."""
    image, channels = (8, 16, 28, 28), (16,)
    outputs = [image, channels, channels, channels, channels, None]
    found = plan(
        "FusedBatchNormV3", [image, *[channels] * 4], outputs, data_format="NCHW"
    )
    assert [one.way for one in found.outputs[1:]] == [Way.ALLOCATE] * 4 + [Way.NONE]
    assert all(one.is_known for one in found.outputs[1:])


@pytest.mark.parametrize(
    ("kind", "way", "is_on_host"),
    [("BesselJ0", Way.ALLOCATE, False), ("ResizeArea", Way.NONE, True)],
)
def test_kernels_that_differ_from_those_of_the_cpu(kind, way, is_on_host):
    """A card's Bessel functions allocate; TensorFlow registers no GPU kernel of ``ResizeArea``."""
    found = plan(kind, [(4, 8)], [(4, 8)])
    assert found.modelled
    assert found.outputs[0].way is way
    assert found.outputs[0].elsewhere is is_on_host
