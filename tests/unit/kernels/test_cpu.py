"""What one run of a CPU kernel does to memory, against what TensorFlow's allocator was seen to do."""

from analyzer.model.contract.run_note import Op, TensorSpec
from analyzer.simulate.kernels import cpu_kernels as cpu
from analyzer.simulate.kernels.cpu_kernels import Call, Way


def call(kind, inputs, outputs, *, dtype="float32", out_dtype="", **attrs):
    op = Op(
        "op",
        kind,
        outputs=tuple(TensorSpec(out_dtype or dtype, shape) for shape in outputs),
        attrs=attrs,
    )
    specs = tuple(TensorSpec(dtype, shape) for shape in inputs)
    return Call(op, specs)


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
    plan = cpu.plan(call("Less", [(4,), (4,)], [(4,)], out_dtype="bool"))
    assert plan.outputs[0].inputs == ()


def test_joining_a_tensor_with_an_empty_one_copies_it():
    """As the addresses of eager tensors tell, for both orders and each axis."""
    plan = cpu.plan(call("ConcatV2", [(8, 0, 96), (8, 32, 96), ()], [(8, 32, 96)], N=2))
    assert plan.outputs[0].way is Way.ALLOCATE


def test_the_gradient_of_the_cross_entropy_lies_in_the_logits():
    plan = cpu.plan(
        call(
            "SparseSoftmaxCrossEntropyWithLogits", [(32, 10), (32,)], [(32,), (32, 10)]
        )
    )
    assert plan.before_bytes == (128,)
    assert [output.way for output in plan.outputs] == [Way.ALLOCATE, Way.FORWARD]
