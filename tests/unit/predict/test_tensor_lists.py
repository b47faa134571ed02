"""TensorLists by hand: what shares, what is copied, what an unset element costs."""

from small_graphs import make_ledger

from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.kernels import cpu_kernels as cpu
from analyzer.simulate.kernels.cpu_kernels import LIST_BYTES as HANDLE_BYTES
from analyzer.simulate.kernels.op_call import Call

ROW, TENSOR = TensorSpec("float32", (64,)), TensorSpec("float32", (3, 64))
LIST, INDEX = TensorSpec("variant", ()), TensorSpec("int32", ())
ROW_BYTES = 256


def plan(kind, inputs, outputs):
    op = Op("op", kind, outputs=tuple(outputs))
    return cpu.plan(Call(op, tuple(inputs)))


MADE_OF = plan("TensorListFromTensor", [TENSOR, INDEX], [LIST])
RESERVED = plan("TensorListReserve", [INDEX, INDEX], [LIST])
SET = plan("TensorListSetItem", [LIST, INDEX, ROW], [LIST])
GET = plan("TensorListGetItem", [LIST, INDEX, INDEX], [ROW])
POP = plan("TensorListPopBack", [LIST, INDEX], [LIST, ROW])


def live_bytes(books):
    return sum(buffer.size_bytes for buffer in books.buffers if buffer.dies is None)


def run(books, node, inputs, index=None):
    """Run a kernel to its end and return its outputs."""
    outputs, in_use = books.compute(node, inputs, index)
    for buffer in in_use:
        books.release(buffer)
    return outputs


def test_a_list_in_use_is_not_changed_but_its_elements_are_shared():
    books = make_ledger(MADE_OF, SET)
    (made,) = run(books, 0, [books.allocate(3 * ROW_BYTES, 0), None])
    made.references += 1  # as the second consumer's slot does
    value = books.allocate(ROW_BYTES, 1)
    (other,) = run(books, 1, [made, None, value], 0)
    assert other is not made
    assert live_bytes(books) == 2 * HANDLE_BYTES + 4 * ROW_BYTES
    books.release(made)
    assert live_bytes(books) == HANDLE_BYTES + 3 * ROW_BYTES


def test_an_item_is_read_where_it_lies_and_zeros_where_none_was_set():
    assert GET.outputs[0].is_known
    books = make_ledger(MADE_OF, GET, RESERVED, GET)
    (made,) = run(books, 0, [None, None])
    made.references += 1
    (item,) = run(books, 1, [made, None, None], 1)
    assert item is made.elements[1]
    assert live_bytes(books) == HANDLE_BYTES + 3 * ROW_BYTES
    (empty,) = run(books, 2, [None, None], 3)
    empty.references += 1
    before = live_bytes(books)
    run(books, 3, [empty, None, None], 1)
    assert live_bytes(books) == before + ROW_BYTES


def test_an_optional_refers_to_its_tensors():
    packed = plan("OptionalFromValue", [ROW, ROW], [LIST])
    books = make_ledger(packed, plan("OptionalGetValue", [LIST], [ROW, ROW]))
    given = [books.allocate(ROW_BYTES, 0) for _ in range(2)]
    (optional,) = run(books, 0, list(given))
    assert live_bytes(books) == HANDLE_BYTES + 2 * ROW_BYTES
    assert run(books, 1, [optional]) == given
    for buffer in given:
        books.release(buffer)
    assert live_bytes(books) == 0
