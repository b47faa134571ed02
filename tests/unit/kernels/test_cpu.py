"""What one run of a CPU kernel does to memory, against what TensorFlow's allocator was seen to do."""

from dataclasses import replace

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.shared.op_call import Call, Way


def call(kind, inputs, outputs, *, values=None, dtype="float32", **attrs):
    op = Op(
        "op",
        kind,
        outputs=tuple(TensorSpec(dtype, shape) for shape in outputs),
        attrs=attrs,
    )
    specs = tuple(TensorSpec(dtype, shape) for shape in inputs)
    return Call(op, specs, tuple(values or [None] * len(specs)))


def test_a_product_of_equal_shapes_may_take_over_either_operand():
    plan = cpu.plan(call("Mul", [(4, 8), (4, 8)], [(4, 8)]))
    assert plan.outputs[0].way is Way.FORWARD
    assert plan.outputs[0].inputs == (0, 1)
    assert plan.outputs[0].size_bytes == 128


def test_a_broadcast_operand_is_never_taken_over():
    plan = cpu.plan(call("AddV2", [(8,), (4, 8)], [(4, 8)]))
    assert plan.outputs[0].inputs == (1,)


def test_a_choice_takes_over_the_value_of_the_results_size():
    plan = cpu.plan(call("SelectV2", [(8, 4), (8, 4), ()], [(8, 4)]))
    assert plan.outputs[0].way is Way.FORWARD
    assert plan.outputs[0].inputs == (1,)


def test_another_element_type_is_never_taken_over():
    op = Op("op", "Less", outputs=(TensorSpec("bool", (4,)),))
    specs = (TensorSpec("float32", (4,)), TensorSpec("float32", (4,)))
    assert cpu.plan(Call(op, specs, (None, None))).outputs[0].inputs == ()


def test_an_output_that_no_op_uses_is_not_made():
    rows = call("Unpack", [(3, 4)], [(4,)] * 3, axis=0)
    merged = call("Merge", [(8,), (8,)], [(8,), ()])
    ways = [
        output.way for output in cpu.plan(replace(rows, unused=frozenset({1}))).outputs
    ]
    assert ways == [Way.ALLOCATE, Way.NONE, Way.ALLOCATE]
    assert cpu.plan(merged).outputs[1].way is Way.ALLOCATE
    assert cpu.plan(replace(merged, unused=frozenset({1}))).outputs[1].way is Way.NONE


@pytest.mark.parametrize(
    ("shape", "begin", "rows", "way"),
    [
        # Rows of 32 bytes: only the whole is shared, although every second row starts on 64 bytes.
        ((4, 8), 0, 4, Way.ALIAS),
        ((4, 8), 1, 2, Way.ALLOCATE),
        ((4, 8), 2, 2, Way.ALLOCATE),
        ((6, 16), 1, 2, Way.ALIAS),
        ((64,), 8, 56, Way.ALLOCATE),
    ],
)
def test_rows_are_shared_only_where_they_are_aligned(shape, begin, rows, way):
    """As the addresses of eager tensors and of their slices tell."""
    begins, sizes = (begin, *(0 for _ in shape[1:])), (rows, *shape[1:])
    axes = (len(shape),)
    plan = cpu.plan(
        call("Slice", [shape, axes, axes], [sizes], values=[None, begins, None])
    )
    assert plan.outputs[0].way is way
    ends, ones = (begin + rows, *shape[1:]), tuple(1 for _ in shape)
    plan = cpu.plan(
        call(
            "StridedSlice",
            [shape, axes, axes, axes],
            [sizes],
            values=[None, begins, ends, ones],
        )
    )
    assert plan.outputs[0].way is way


@pytest.mark.parametrize(
    ("out", "begin", "end", "masks", "way"),
    [
        ((4, 16), (0,), (-2,), {"begin_mask": 1}, Way.ALIAS),  # x[:-2]
        ((4, 16), (2,), (0,), {"end_mask": 1}, Way.ALIAS),  # x[2:]
        ((4, 16), (2,), None, {"end_mask": 1}, Way.ALIAS),
        (
            (3, 16),
            (0, 0),
            (3, 0),
            {"begin_mask": 3, "end_mask": 2},
            Way.ALIAS,
        ),  # x[:3, :]
        (
            (3, 16),
            (-3, 0),
            (0, 0),
            {"end_mask": 1, "ellipsis_mask": 2},
            Way.ALIAS,
        ),  # x[-3:, ...]
        ((16,), (-2,), (-1,), {"shrink_axis_mask": 1}, Way.ALIAS),  # x[-2]
        ((2, 16), (1, 0), (3, 16), {}, Way.ALIAS),  # x[1:3, 0:16]
        (
            (6, 8),
            (0, 0),
            (0, 8),
            {"begin_mask": 3, "end_mask": 1},
            Way.ALLOCATE,
        ),  # x[:, :8]
        ((2, 8), (1, 0), (3, 8), {}, Way.ALLOCATE),  # x[1:3, :8]
    ],
)
def test_a_slice_is_a_view_where_its_masks_say_so(out, begin, end, masks, way):
    """Of six rows of 64 bytes; as the addresses of eager tensors and of their slices tell."""
    entries = (len(begin or end or (0,)),)
    values = [None, begin, end, (1,) * entries[0]]
    sliced = call(
        "StridedSlice",
        [(6, 16), entries, entries, entries],
        [out],
        values=values,
        **masks,
    )
    assert cpu.plan(sliced).outputs[0].way is way


@pytest.mark.parametrize(
    ("shape", "way"), [((6, 16), Way.ALIAS), ((16,), Way.ALLOCATE)]
)
def test_one_row_at_an_unknown_place_is_a_view_if_rows_are_aligned(shape, way):
    """``x[i]`` in a loop, as the addresses of eager tensors and of their slices tell."""
    inputs, values = [shape, (1,), (1,), (1,)], [None, None, None, (1,)]
    row = call("StridedSlice", inputs, [shape[1:]], values=values, shrink_axis_mask=1)
    assert cpu.plan(row).outputs[0].way is way


def test_joining_a_tensor_with_an_empty_one_copies_it():
    """As the addresses of eager tensors tell, for both orders and each axis."""
    plan = cpu.plan(call("ConcatV2", [(8, 0, 96), (8, 32, 96), ()], [(8, 32, 96)], N=2))
    assert plan.outputs[0].way is Way.ALLOCATE


def test_moving_an_axis_of_one_is_no_copy():
    values = [None, (1, 0, 2)]
    assert cpu.plan(
        call("Transpose", [(1, 4, 8), (3,)], [(4, 1, 8)], values=values)
    ).outputs[0].way is (Way.ALIAS)
    assert cpu.plan(
        call("Transpose", [(2, 4, 8), (3,)], [(4, 2, 8)], values=values)
    ).outputs[0].way is (Way.ALLOCATE)


@pytest.mark.parametrize(
    ("shape", "axes", "copy_bytes"),
    [
        ((2, 4, 8, 16), (0, 1, 2), ()),
        ((2, 4, 8, 16), (0, 2), (4096,)),
        ((2, 4, 8, 16), (1, 2), ()),
        ((1, 4, 8, 16), (0, 2), ()),
    ],
)
def test_a_reduction_copies_only_where_axes_alternate_too_often(
    shape, axes, copy_bytes
):
    plan = cpu.plan(call("Sum", [shape, (len(axes),)], [(16,)], values=[None, axes]))
    assert plan.outputs[0].region == "temp"
    assert plan.after_bytes == copy_bytes


def test_reducing_nothing_shares_the_buffer():
    plan = cpu.plan(call("Mean", [(1, 16), (1,)], [(16,)], values=[None, (0,)]))
    assert plan.outputs[0].way is Way.ALIAS


def test_over_axes_that_are_not_known_the_result_tells_whether_anything_is_reduced():
    reduced = [((4, 16), Way.ALIAS), ((1, 64), Way.ALIAS), ((4, 1), Way.ALLOCATE)]
    for result, way in reduced:
        plan = cpu.plan(call("Sum", [(4, 16), (1,)], [result], values=[None, None]))
        assert plan.outputs[0].way is way


def test_the_gradient_of_the_cross_entropy_lies_in_the_logits():
    plan = cpu.plan(
        call(
            "SparseSoftmaxCrossEntropyWithLogits", [(32, 10), (32,)], [(32,), (32, 10)]
        )
    )
    assert plan.before_bytes == (128,)
    assert [output.way for output in plan.outputs] == [Way.ALLOCATE, Way.FORWARD]


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "before"),
    [
        ("BTNH,BSNH->BNTS", [(4, 128, 8, 32)] * 2, (4, 8, 128, 128), [524288] * 2),
        (
            "BNTS,BSNH->BTNH",
            [(4, 8, 128, 128), (4, 128, 8, 32)],
            (4, 128, 8, 32),
            [524288] * 2,
        ),
        (
            "BTNH,BNTS->BSNH",
            [(4, 128, 8, 32), (4, 8, 128, 128)],
            (4, 128, 8, 32),
            [524288] * 2,
        ),
    ],
)
def test_einsum_copies_as_measured(equation, shapes, out, before):
    plan = cpu.plan(call("_MklEinsum", shapes, [out], equation=equation))
    assert list(plan.before_bytes) == before
