"""TensorLists by hand: what shares, what is copied, what an unset element costs."""

from ledgers import make_ledger

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels.cpu import cpu_kernels as cpu
from analyzer.simulate.kernels.shared.op_call import Call
from analyzer.simulate.kernels.shared.tensor_list_kernels import HANDLE_BYTES
from analyzer.simulate.predict.process_table import make_allocations
from analyzer.simulate.predict.sampling import predict

ROW, TENSOR = TensorSpec("float32", (64,)), TensorSpec("float32", (3, 64))
LIST, INDEX = TensorSpec("variant", ()), TensorSpec("int32", ())
ROW_BYTES = 256


def plan(kind, inputs, outputs):
    op = Op("op", kind, outputs=tuple(outputs))
    return cpu.plan(Call(op, tuple(inputs), (None,) * len(inputs)))


MADE_OF = plan("TensorListFromTensor", [TENSOR, INDEX], [LIST])
RESERVED = plan("TensorListReserve", [INDEX, INDEX], [LIST])
SET = plan("TensorListSetItem", [LIST, INDEX, ROW], [LIST])
GET = plan("TensorListGetItem", [LIST, INDEX, INDEX], [ROW])
POP = plan("TensorListPopBack", [LIST, INDEX], [LIST, ROW])
STACK = plan("TensorListStack", [LIST, INDEX], [TENSOR])
SCATTER = plan("TensorListScatterIntoExistingList", [LIST, TENSOR, INDEX], [LIST])
SUM = plan("AddN", [LIST, LIST], [LIST])
ZEROS = plan("ZerosLike", [LIST], [LIST])


def live_bytes(books):
    buffers = books.buffers
    return sum(
        size
        for size, born, dies in zip(buffers.size_bytes, buffers.born, buffers.dies, strict=True)
        if born >= 0 and dies < 0
    )


def test_each_row_of_a_tensor_is_copied():
    books = make_ledger(MADE_OF)
    source = books.allocate(0, 3 * ROW_BYTES, 0, "output")
    (made,) = books.compute(0, [source, -1])
    assert live_bytes(books) == HANDLE_BYTES + 3 * ROW_BYTES
    books.release(made)
    assert live_bytes(books) == 0


def test_rows_that_a_loop_scatters_stay_in_the_list():
    """``TensorArray.scatter``: of six elements the second trip finds three unset."""
    books = make_ledger(RESERVED, SCATTER, SCATTER)
    (made,) = books.compute(0, [-1, -1], 6)
    for node, count in ((1, 3), (2, 6)):
        value = books.allocate(node, 3 * ROW_BYTES, 0, "output")
        (made,) = books.compute(node, [made, value, -1])
        assert live_bytes(books) == HANDLE_BYTES + count * ROW_BYTES
    books.release(made)
    assert live_bytes(books) == 0


def test_an_item_takes_the_place_of_the_one_before():
    books = make_ledger(RESERVED, SET, SET)
    (made,) = books.compute(0, [-1, -1], 2)
    for node, index in ((1, 1), (2, 1)):
        value = books.allocate(node, ROW_BYTES, 0, "output")
        (made,) = books.compute(node, [made, -1, value], index)
    assert live_bytes(books) == HANDLE_BYTES + ROW_BYTES


def test_a_list_in_use_is_not_changed_but_its_elements_are_shared():
    books = make_ledger(MADE_OF, SET)
    (made,) = books.compute(0, [books.allocate(0, 3 * ROW_BYTES, 0, "output"), -1])
    books.references[made] += 1  # as the second consumer's slot does
    value = books.allocate(1, ROW_BYTES, 0, "output")
    (other,) = books.compute(1, [made, -1, value], 0)
    assert other != made
    assert live_bytes(books) == 2 * HANDLE_BYTES + 4 * ROW_BYTES
    books.release(made)
    assert live_bytes(books) == HANDLE_BYTES + 3 * ROW_BYTES


def test_an_item_is_read_where_it_lies_and_zeros_where_none_was_set():
    assert GET.outputs[0].is_known
    books = make_ledger(MADE_OF, GET, RESERVED, GET)
    (made,) = books.compute(0, [-1, -1])
    books.references[made] += 1
    (item,) = books.compute(1, [made, -1, -1], 1)
    assert item == books.lists.elements[made][1]
    assert live_bytes(books) == HANDLE_BYTES + 3 * ROW_BYTES
    (empty,) = books.compute(2, [-1, -1], 3)
    books.references[empty] += 1
    before = live_bytes(books)
    books.compute(3, [empty, -1, -1], 1)
    assert live_bytes(books) == before + ROW_BYTES


def test_a_list_that_is_popped_lets_go_of_its_last_element():
    books = make_ledger(MADE_OF, POP)
    (made,) = books.compute(0, [-1, -1])
    made, item = books.compute(1, [made, -1])
    books.release(item)
    assert live_bytes(books) == HANDLE_BYTES + 2 * ROW_BYTES


def test_lists_are_summed_where_both_have_an_element():
    """A gradient that a loop adds up: one row is new, the others are shared."""
    books = make_ledger(MADE_OF, RESERVED, SET, SUM)
    (total,) = books.compute(0, [-1, -1])
    (one,) = books.compute(1, [-1, -1], 3)
    value = books.allocate(2, ROW_BYTES, 0, "output")
    (one,) = books.compute(2, [one, -1, value], 1)
    asked = len(books.buffers.size_bytes)
    (total,) = books.compute(3, [one, total])
    made = books.buffers.size_bytes[asked:]
    assert [size for size in made if size] == [ROW_BYTES]
    assert live_bytes(books) == 3 * ROW_BYTES  # a sum's own tensor is another allocator's


def test_zeros_like_a_list_has_zeros_for_what_is_set():
    books = make_ledger(RESERVED, SET, ZEROS)
    (made,) = books.compute(0, [-1, -1], 3)
    (made,) = books.compute(1, [made, -1, books.allocate(1, ROW_BYTES, 0, "output")], 2)
    books.references[made] += 1
    (zeros,) = books.compute(2, [made])
    assert [element >= 0 for element in books.lists.elements[zeros]] == [False, False, True]
    assert live_bytes(books) == HANDLE_BYTES + 2 * ROW_BYTES


def test_stacking_needs_zeros_for_what_is_unset():
    books = make_ledger(RESERVED, STACK)
    (made,) = books.compute(0, [-1, -1], 3)
    books.compute(1, [made, -1])
    assert [size for size in books.buffers.size_bytes if size] == [
        HANDLE_BYTES,
        3 * ROW_BYTES,
        ROW_BYTES,
    ]


def test_an_optional_refers_to_its_tensors():
    packed = plan("OptionalFromValue", [ROW, ROW], [LIST])
    books = make_ledger(packed, plan("OptionalGetValue", [LIST], [ROW, ROW]))
    given = [books.allocate(0, ROW_BYTES, 0, "output") for _ in range(2)]
    (optional,) = books.compute(0, list(given))
    assert live_bytes(books) == HANDLE_BYTES + 2 * ROW_BYTES
    assert books.compute(1, [optional]) == given
    for buffer in given:
        books.release(buffer)
    assert live_bytes(books) == 0


def test_an_index_that_went_through_a_list_is_followed():
    """As in a loop's backward pass, which pops the forward pass' counter."""
    ops = [
        Op("one", "Const", outputs=(INDEX,), attrs={"value": _whole(1)}),
        Op("x", "_Arg", outputs=(TENSOR,), attrs={"index": 0}),
        Op("empty", "_Arg", outputs=(LIST,), attrs={"index": 1}),
        Op("pred", "Const", outputs=(TensorSpec("bool", ()),), attrs={"value": _whole(1, "bool")}),
        Op("switch", "Switch", ("one:0", "pred:0"), outputs=(INDEX, INDEX)),
        Op("rows", "TensorListFromTensor", ("x:0", "one:0"), outputs=(LIST,)),
        Op("push", "TensorListPushBack", ("empty:0", "switch:1"), outputs=(LIST,)),
        Op("pop", "TensorListPopBack", ("push:0", "one:0"), outputs=(LIST, INDEX)),
        Op("get", "TensorListGetItem", ("rows:0", "pop:1", "one:0"), outputs=(ROW,)),
        Op("new", "OneHot", ("get:0",), outputs=(ROW,)),
        Op("set", "TensorListSetItem", ("rows:0", "pop:1", "new:0"), ("get",), (LIST,)),
        Op("end", "_Retval", ("set:0",), attrs={"index": 0}),
    ]
    found = predict(ops, [])
    table = make_allocations(found.prepared, found.middle)
    rows = table[table.op == "rows"].iloc[-3:]
    first, second, third = rows.dies
    assert second < min(first, third)


def _whole(value, dtype="int32"):
    return {"dtype": dtype, "shape": [], "values": [value]}
