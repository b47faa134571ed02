"""Numbers that decide branches: what is worked out of a step's tensors without their values."""

import pytest

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.predict.scalar_values import evaluate

MATRIX, ROWS, ONE = (TensorSpec("float32", shape) for shape in ((8, 4), (8,), ()))
FLAGS, FLAG_ROWS, FLAG = (TensorSpec("bool", shape) for shape in ((8, 4), (8,), ()))
AXIS = TensorSpec("int32", (1,))


def op(kind, output):
    return Op("op", kind, outputs=(output,))


@pytest.mark.parametrize(
    ("kind", "value"), [("IsFinite", 1), ("IsNan", 0), ("IsInf", 0)]
)
def test_numbers_are_finite(kind, value):
    assert evaluate(op(kind, FLAGS), [None], [MATRIX]) == (value,)


def test_a_sparse_gradient_is_divided_by_what_is_not_zero():
    """As Keras asks before it divides: is any element of the denominator zero or no number?"""
    zero = evaluate(op("Equal", FLAGS), [None, None], [ONE, MATRIX])
    either = evaluate(op("LogicalOr", FLAGS), [zero, (0,)], [FLAGS, FLAGS])
    rows = evaluate(op("Any", FLAG_ROWS), [either, (1,)], [FLAGS, AXIS])
    assert evaluate(op("Any", FLAG), [rows, (0,)], [FLAG_ROWS, AXIS]) == (0,)


def test_two_numbers_or_two_tensors_may_be_equal():
    assert evaluate(op("Equal", FLAG), [None, None], [ONE, ONE]) is None
    assert evaluate(op("Equal", FLAGS), [None, None], [MATRIX, MATRIX]) is None


def test_a_sum_of_one_known_number_is_not_that_of_a_tensor():
    assert evaluate(op("Sum", ROWS), [(1,), (1,)], [MATRIX, AXIS]) is None


def test_a_schedule_compares_the_step_with_a_float():
    count, limit = (
        TensorSpec("int64", ()),
        Op("limit", "Const", outputs=(ONE,), attrs=_value(100.0)),
    )
    now = evaluate(op("Cast", ONE), [(2,)], [count])
    assert evaluate(op("Less", FLAG), [now, evaluate(limit, [], [])], [ONE, ONE]) == (
        1,
    )
    half = Op("half", "Const", outputs=(ONE,), attrs=_value(0.5))
    assert evaluate(half, [], []) == (0.5,)


def test_a_part_that_is_as_the_rest_changes_nothing():
    """As Keras asks whether a sparse gradient is finite: everything is, and so are its rows."""
    true = {"value": {"dtype": "bool", "shape": [8, 4], "every": True}}
    base = evaluate(Op("fill", "Const", outputs=(FLAGS,), attrs=true), [], [])
    rows = evaluate(op("IsFinite", FLAGS), [None], [MATRIX])
    mixed = op("TensorScatterUpdate", FLAGS)
    assert evaluate(mixed, [base, None, rows], [FLAGS, AXIS, FLAGS]) == (1,)
    assert evaluate(mixed, [(0,), None, rows], [FLAGS, AXIS, FLAGS]) is None


def test_an_element_of_a_list_of_constants_is_known():
    count = op("TensorListGetItem", TensorSpec("int32", ()))
    counts = evaluate(
        op("TensorListFromTensor", TensorSpec("variant", ())), [(6, 1, 2), ()], []
    )
    assert [evaluate(count, [counts, (k,), ()], []) for k in range(4)] == [
        (6,),
        (1,),
        (2,),
        None,
    ]
    assert evaluate(count, [(1,), (7,), ()], []) == (
        1,
    )  # one number stands for equal ones
    assert evaluate(count, [None, (0,), ()], []) is None


def test_an_iterator_has_a_next_batch():
    """As Keras 3.16 asks before each step of its loop."""
    has_next = evaluate(
        op("OptionalHasValue", FLAG), [None], [TensorSpec("variant", ())]
    )
    assert evaluate(op("LogicalAnd", FLAG), [(1,), has_next], [FLAG, FLAG]) == (1,)


def _value(number):
    return {"value": {"dtype": "float32", "shape": [], "values": [number]}}
