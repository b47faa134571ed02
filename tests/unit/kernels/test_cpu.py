"""What one run of a CPU kernel does to memory, against what TensorFlow's allocator was seen to do."""

from dataclasses import replace

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.cpu.onednn_products import Product, find_scratch_bytes
from analyzer.simulate.kernels.shared.op_call import Call, VariableAccess, Way


def call(kind, inputs, outputs, *, values=None, dtype="float32", threads=2, **attrs):
    op = Op("op", kind, outputs=tuple(TensorSpec(dtype, shape) for shape in outputs), attrs=attrs)
    specs = tuple(TensorSpec(dtype, shape) for shape in inputs)
    return Call(op, specs, tuple(values or [None] * len(specs)), threads)


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


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "scratch"),
    [
        ("HistogramFixedWidth", [(600,), (2,), ()], (20,), (2400,)),
        ("RGBToHSV", [(2, 20, 24, 3)], (2, 20, 24, 3), (3840,)),
        ("ImageProjectiveTransformV3", [(2, 20, 24, 3), (1, 8)], (2, 20, 24, 3), ()),
    ],
)
def test_scratch_that_was_seen(kind, inputs, output, scratch):
    plan = cpu.plan(call(kind, inputs, [output]))
    assert plan.modelled
    assert plan.outputs[0].way is Way.ALLOCATE
    assert plan.after_bytes == scratch


@pytest.mark.parametrize(
    ("left", "right", "out", "transposed", "scratch"),
    [
        ((384, 128), (128, 512), (384, 512), (False, False), 17280),
        ((384, 512), (128, 512), (384, 128), (False, True), 66432),
        ((384, 128), (384, 512), (128, 512), (True, False), 148480),
        ((384, 512), (384, 128), (512, 128), (True, False), 246784),
    ],
)
def test_products_of_bfloat16_need_the_copies_that_were_seen(left, right, out, transposed, scratch):
    flags = {"transpose_a": transposed[0], "transpose_b": transposed[1]}
    product = call("_MklMatMul", [left, right], [out], dtype="bfloat16", **flags)
    assert cpu.plan(product).after_bytes == (scratch,)
    assert cpu.plan(call("_MklMatMul", [left, right], [out], **flags)).after_bytes == ()


@pytest.mark.parametrize(
    ("dtype", "left", "right", "transposed", "scratch"),
    [
        ("bfloat16", (8, 48, 128), (8, 48, 128), (True, False), 50816),
        ("bfloat16", (8, 48, 128), (128, 128), (False, False), 34304),
        ("float32", (16, 40, 40), (16, 40, 96), (True, False), 16896),
        ("float32", (16, 40, 96), (16, 40, 40), (True, False), 38400),
        ("float32", (16, 40, 96), (16, 40, 96), (False, True), 50688),
        ("float32", (16, 40, 40), (16, 40, 96), (False, False), 1408),
    ],
)
def test_products_of_batches_need_the_copies_that_were_seen(
    dtype, left, right, transposed, scratch
):
    flags = {"adj_x": transposed[0], "adj_y": transposed[1]}
    product = call("_MklBatchMatMulV2", [left, right], [(8, 8, 8)], dtype=dtype, **flags)
    assert cpu.plan(product).after_bytes == (scratch,)


@pytest.mark.parametrize(
    ("left", "right", "out", "copies"),
    [
        ("int8", "int8", "int32", (256, 2048)),
        ("int8", "int32", "int32", (256,)),
        ("float32", "float32", "float32", ()),
        ("bfloat16", "bfloat16", "float32", (256, 2048, 512)),
        ("float16", "float16", "float16", (256, 2048, 512)),
    ],
)
def test_a_product_multiplies_copies_of_operands_of_another_type(left, right, out, copies):
    """``CastTensor`` and the copies of 16-bit operands in ``matmul_op_impl.h``."""
    product = Op("op", "BatchMatMulV3", outputs=(TensorSpec(out, (4, 32)),))
    operands = (TensorSpec(left, (4, 16)), TensorSpec(right, (16, 32)))
    assert cpu.plan(Call(product, operands, (None, None))).after_bytes == copies


def test_strings_take_as_many_bytes_as_their_headers():
    op = Op("op", "AsString", outputs=(TensorSpec("string", (50,)),))
    assert cpu.plan(Call(op, (), ())).outputs[0].size_bytes == 1200


def test_an_output_that_no_op_uses_is_not_made():
    rows = call("Unpack", [(3, 4)], [(4,)] * 3, axis=0)
    merged = call("Merge", [(8,), (8,)], [(8,), ()])
    ways = [output.way for output in cpu.plan(replace(rows, unused=frozenset({1}))).outputs]
    assert ways == [Way.ALLOCATE, Way.NONE, Way.ALLOCATE]
    assert cpu.plan(merged).outputs[1].way is Way.ALLOCATE
    assert cpu.plan(replace(merged, unused=frozenset({1}))).outputs[1].way is Way.NONE


@pytest.mark.parametrize("kind", ["Reshape", "Identity", "Squeeze", "Enter"])
def test_views_allocate_nothing(kind):
    assert cpu.plan(call(kind, [(4, 8)], [(32,)])).outputs[0].way is Way.ALIAS


@pytest.mark.parametrize(
    ("shape", "begin", "rows", "way"),
    [
        # Rows of 32 bytes: only the whole is shared, although every second row starts on 64 bytes.
        ((4, 8), 0, 4, Way.ALIAS),
        ((4, 8), 1, 2, Way.ALLOCATE),
        ((4, 8), 2, 2, Way.ALLOCATE),
        ((6, 16), 1, 2, Way.ALIAS),
        ((64,), 0, 16, Way.ALIAS),
        ((64,), 8, 56, Way.ALLOCATE),
    ],
)
def test_rows_are_shared_only_where_they_are_aligned(shape, begin, rows, way):
    """As the addresses of eager tensors and of their slices tell."""
    begins, sizes = (begin, *(0 for _ in shape[1:])), (rows, *shape[1:])
    axes = (len(shape),)
    plan = cpu.plan(call("Slice", [shape, axes, axes], [sizes], values=[None, begins, None]))
    assert plan.outputs[0].way is way
    ends, ones = (begin + rows, *shape[1:]), tuple(1 for _ in shape)
    plan = cpu.plan(
        call("StridedSlice", [shape, axes, axes, axes], [sizes], values=[None, begins, ends, ones])
    )
    assert plan.outputs[0].way is way


@pytest.mark.parametrize(
    ("out", "begin", "end", "masks", "way"),
    [
        ((4, 16), (0,), (-2,), {"begin_mask": 1}, Way.ALIAS),  # x[:-2]
        ((4, 16), (2,), (0,), {"end_mask": 1}, Way.ALIAS),  # x[2:]
        ((4, 16), (2,), None, {"end_mask": 1}, Way.ALIAS),
        ((4, 16), None, None, {"end_mask": 1}, Way.ALLOCATE),  # nothing tells where it begins
        ((3, 16), (0, 0), (3, 0), {"begin_mask": 3, "end_mask": 2}, Way.ALIAS),  # x[:3, :]
        ((3, 16), (-3, 0), (0, 0), {"end_mask": 1, "ellipsis_mask": 2}, Way.ALIAS),  # x[-3:, ...]
        ((16,), (-2,), (-1,), {"shrink_axis_mask": 1}, Way.ALIAS),  # x[-2]
        ((2, 16), (1, 0), (3, 16), {}, Way.ALIAS),  # x[1:3, 0:16]
        ((1, 2, 16), (0, 1), (0, 3), {"new_axis_mask": 1}, Way.ALIAS),  # x[None, 1:3]
        ((6, 8), (0, 0), (0, 8), {"begin_mask": 3, "end_mask": 1}, Way.ALLOCATE),  # x[:, :8]
        ((2, 8), (1, 0), (3, 8), {}, Way.ALLOCATE),  # x[1:3, :8]
    ],
)
def test_a_slice_is_a_view_where_its_masks_say_so(out, begin, end, masks, way):
    """Of six rows of 64 bytes; as the addresses of eager tensors and of their slices tell."""
    entries = (len(begin or end or (0,)),)
    values = [None, begin, end, (1,) * entries[0]]
    sliced = call(
        "StridedSlice", [(6, 16), entries, entries, entries], [out], values=values, **masks
    )
    assert cpu.plan(sliced).outputs[0].way is way


@pytest.mark.parametrize(("shape", "way"), [((6, 16), Way.ALIAS), ((16,), Way.ALLOCATE)])
def test_one_row_at_an_unknown_place_is_a_view_if_rows_are_aligned(shape, way):
    """``x[i]`` in a loop, as the addresses of eager tensors and of their slices tell."""
    inputs, values = [shape, (1,), (1,), (1,)], [None, None, None, (1,)]
    row = call("StridedSlice", inputs, [shape[1:]], values=values, shrink_axis_mask=1)
    assert cpu.plan(row).outputs[0].way is way


def test_joining_a_tensor_with_an_empty_one_copies_it():
    """As the addresses of eager tensors tell, for both orders and each axis."""
    plan = cpu.plan(call("ConcatV2", [(8, 0, 96), (8, 32, 96), ()], [(8, 32, 96)], N=2))
    assert plan.outputs[0].way is Way.ALLOCATE


CONVOLUTIONS = [  # images, kernel, result, stride, threads, bytes of the scratchpad in a trace
    ((4, 28, 28, 1), (3, 3, 1, 16), (4, 28, 28, 16), 1, 2, 69_680),
    ((4, 28, 28, 1), (3, 3, 1, 4), (4, 28, 28, 4), 1, 4, 118_880),
    ((4, 28, 28, 1), (5, 5, 1, 32), (4, 28, 28, 32), 1, 2, 102_448),
    ((16, 28, 28, 1), (8, 8, 1, 16), (16, 14, 14, 16), 2, 2, 528_432),
    ((2, 128, 96, 1), (7, 7, 1, 64), (2, 64, 48, 64), 2, 2, 1_032_240),
    ((2, 200, 200, 1), (3, 3, 1, 8), (2, 99, 99, 8), 2, 2, 135_216),
    ((2, 33, 29, 1), (4, 3, 1, 20), (2, 11, 10, 20), 3, 2, 102_448),
    ((2, 16, 16, 1), (3, 3, 1, 1), (2, 16, 16, 1), 1, 2, 45_080),  # small: one thread
    # no windows: one image, two channels, many blocks
    ((1, 28, 28, 1), (3, 3, 1, 64), (1, 28, 28, 64), 1, 2, 12_336),
    ((1, 28, 28, 1), (3, 3, 1, 4), (1, 28, 28, 4), 1, 4, 20_576),
    ((1, 8, 8, 1), (3, 3, 1, 4), (1, 8, 8, 4), 1, 2, 8_216),
    ((2, 28, 28, 2), (3, 3, 2, 16), (2, 28, 28, 16), 1, 2, 12_336),
    ((2, 28, 28, 8), (11, 11, 8, 8), (2, 28, 28, 8), 1, 2, 20_496),
]


@pytest.mark.parametrize(
    ("images", "kernel", "result", "stride", "threads", "measured"), CONVOLUTIONS
)
def test_scratchpads_of_convolutions_as_measured(images, kernel, result, stride, threads, measured):
    strides = [1, stride, stride, 1]
    one = call("_MklNativeConv2D", [images, kernel], [result], threads=threads, strides=strides)
    assert cpu.plan(one).after_bytes == (measured,)


def test_moving_an_axis_of_one_is_no_copy():
    values = [None, (1, 0, 2)]
    assert cpu.plan(call("Transpose", [(1, 4, 8), (3,)], [(4, 1, 8)], values=values)).outputs[
        0
    ].way is (Way.ALIAS)
    assert cpu.plan(call("Transpose", [(2, 4, 8), (3,)], [(4, 2, 8)], values=values)).outputs[
        0
    ].way is (Way.ALLOCATE)


@pytest.mark.parametrize(
    ("shape", "axes", "copy_bytes"),
    [
        ((2, 4, 8, 16), (0, 1, 2), ()),
        ((2, 4, 8, 16), (0, 2), (4096,)),
        ((2, 4, 8, 16), (1, 2), ()),
        ((1, 4, 8, 16), (0, 2), ()),
    ],
)
def test_a_reduction_copies_only_where_axes_alternate_too_often(shape, axes, copy_bytes):
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


def test_one_factor_of_a_matrix_lies_in_it():
    # Measured: a step of each allocates one buffer less than it has outputs.
    square, ways = (64, 64), [Way.ALLOCATE, Way.FORWARD, Way.ALLOCATE]
    plans = [cpu.plan(call("Svd", [square], [(64,), square, square]))]
    plans += [cpu.plan(call("SelfAdjointEigV2", [square], [(64,), square]))]
    assert [[output.way for output in plan.outputs] for plan in plans] == [ways, ways[:2]]
    plans = [cpu.plan(call("Qr", [(64, 8)], [(64, 8), (8, 8)]))]
    plans += [cpu.plan(call("Lu", [square], [square, (64,)], dtype="float32"))]
    assert [[output.way for output in plan.outputs] for plan in plans] == [
        [Way.FORWARD, Way.ALLOCATE]
    ] * 2


@pytest.mark.parametrize(
    "kind", ["MatrixBandPart", "MatrixSetDiagV3", "MatrixSquareRoot", "AdjustHue", "Polygamma"]
)
def test_kernels_that_work_in_the_buffer_of_their_input(kind):
    plan = cpu.plan(call(kind, [(8, 8, 3)] * 2, [(8, 8, 3)]))
    assert plan.outputs[0].way is Way.FORWARD


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "scratch"),
    [(8, 64, 192, 6_272), (100, 300, 50, 20_128), (16, 1000, 1000, 64_128), (1, 128, 128, 640)],
)
def test_fused_products_of_bfloat16_sum_in_float32_as_measured(rows, depth, columns, scratch):
    shapes = [(rows, depth), (depth, columns), (columns,)]
    product = call(
        "_MklNativeFusedMatMul", shapes, [(rows, columns)], dtype="bfloat16", fused_ops=["BiasAdd"]
    )
    assert cpu.plan(product).after_bytes == (scratch,)


def test_the_gradient_of_the_cross_entropy_lies_in_the_logits():
    plan = cpu.plan(
        call("SparseSoftmaxCrossEntropyWithLogits", [(32, 10), (32,)], [(32,), (32, 10)])
    )
    assert plan.before_bytes == (128,)
    assert [output.way for output in plan.outputs] == [Way.ALLOCATE, Way.FORWARD]


def test_half_precision_gradients_unroll_images_into_columns():
    # Measured: 20,321,280 bytes for both, 180 images that fit a 30 MiB cache.
    shapes = [(16, 16, 16, 32), (4,), (16, 14, 14, 64)]
    plan = cpu.plan(call("Conv2DBackpropFilter", shapes, [(3, 3, 32, 64)], dtype="float16"))
    assert plan.after_bytes == (20_321_280,)
    shapes = [(4,), (3, 3, 32, 64), (16, 14, 14, 64)]
    plan = cpu.plan(call("Conv2DBackpropInput", shapes, [(16, 16, 16, 32)], dtype="float16"))
    assert plan.after_bytes == (20_321_280,)


def test_half_precision_products_are_made_in_float32():
    plan = cpu.plan(call("MatMul", [(16, 3136), (3136, 128)], [(16, 128)], dtype="float16"))
    assert plan.after_bytes == (200_704, 1_605_632, 8_192)


PRODUCTS = [  # operands in memory, transposed or not, threads, bytes of an element, bytes measured
    ((3, 197, 777), (1, 768, 777), (False, True), 2, 4, 263_680),
    ((2, 726, 1024), (2, 726, 128), (True, False), 2, 4, 1_082_880),
    ((1, 1197, 512), (1, 1197, 216), (True, False), 2, 2, 1_214_208),
    ((1, 141, 512), (1, 120, 141), (True, True), 2, 4, 370_304),
    ((2, 257, 101), (2, 1600, 257), (True, True), 2, 2, 191_744),
    ((6, 193, 255), (1, 255, 1332), (False, False), 2, 4, 1_408),
    ((2, 1, 140, 1220), (2, 1, 1220, 4), (False, False), 2, 4, 1_408),
    ((1, 192, 281), (1, 192, 214), (True, False), 2, 4, 218_112),
    ((1, 83, 1536), (4, 83, 768), (True, False), 2, 4, 198_144),
    ((1, 1119, 137), (1, 137, 204), (False, False), 4, 2, 84_736),
    ((2, 241, 32), (1, 14, 241), (True, True), 2, 4, 198_272),
    ((6, 151, 1536), (6, 151, 16), (True, False), 4, 4, 658_176),
    ((8, 65, 1024), (8, 65, 16), (True, False), 2, 2, 124_544),
    ((2, 25, 930), (2, 271, 25), (True, True), 1, 4, 33_024),
    ((2, 3, 768, 1308), (2, 3, 66, 768), (True, True), 2, 4, 1_184_640),
    ((4, 32, 916), (1, 32, 1536), (True, False), 2, 4, 60_160),
    ((2, 1181, 204), (2, 204, 833), (False, False), 1, 2, 29_568),
    ((2, 1, 1024, 768), (2, 1, 449, 768), (False, True), 2, 4, 263_680),
]


@pytest.mark.parametrize(
    ("left", "right", "transposes", "threads", "item_bytes", "measured"), PRODUCTS
)
def test_scratchpads_of_products_as_measured(
    left, right, transposes, threads, item_bytes, measured
):
    product = Product(left, right, transposes, threads, item_bytes)
    assert find_scratch_bytes(product) == measured


@pytest.mark.parametrize(
    ("equation", "shapes", "out", "before", "scratch", "after"),
    [
        ("BTNH,BSNH->BNTS", [(4, 128, 8, 32)] * 2, (4, 8, 128, 128), [524288] * 2, (), (17920,)),
        (
            "BNTS,BSNH->BTNH",
            [(4, 8, 128, 128), (4, 128, 8, 32)],
            (4, 128, 8, 32),
            [524288] * 2,
            (67072,),
            (),
        ),
        (
            "BTNH,BNTS->BSNH",
            [(4, 128, 8, 32), (4, 8, 128, 128)],
            (4, 128, 8, 32),
            [524288] * 2,
            (1408,),
            (),
        ),
    ],
)
def test_einsum_copies_as_measured(equation, shapes, out, before, scratch, after):
    plan = cpu.plan(call("_MklEinsum", shapes, [out], equation=equation))
    assert (list(plan.before_bytes), plan.scratch_bytes, plan.after_bytes) == (
        before,
        scratch,
        after,
    )


def test_variables_are_read_adopted_and_updated():
    assert cpu.plan(call("ReadVariableOp", [()], [(4,)])).variable is VariableAccess.READ
    assert cpu.plan(call("AssignVariableOp", [(), (4,)], [])).variable is VariableAccess.ASSIGN
    assert cpu.plan(call("AssignAddVariableOp", [(), (4,)], [])).variable is VariableAccess.UPDATE


def test_an_unknown_type_is_taken_to_allocate_and_says_so():
    plan = cpu.plan(call("SomethingNew", [(4,)], [(4,), (8,)]))
    assert not plan.modelled
    assert [output.size_bytes for output in plan.outputs] == [16, 32]
