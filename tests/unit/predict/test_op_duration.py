"""How long ops run: only which of two takes longer is relied on."""

import pytest

from analyzer.model.contract.graph_note import PLACE, Op, TensorSpec
from analyzer.simulate.kernels.shared.op_call import MemoryPlan
from analyzer.simulate.predict.executor.threads import (
    CALL_BACK_SECONDS,
    INLINE_SECONDS,
    OpTiming,
    TaskRunner,
    Workers,
    count_operations,
    estimate_timing,
)
from analyzer.simulate.predict.graph.edges import Wiring
from analyzer.simulate.predict.prepared_step import prepare


def tensor(*shape):
    return TensorSpec("float32", shape)


def arg(name, index, *shape):
    return Op(name, "_Arg", outputs=(tensor(*shape),), device=PLACE, attrs={"index": index})


def op(name, kind, *inputs, shape, **attrs):
    return Op(name, kind, inputs=tuple(f"{i}:0" for i in inputs), outputs=(tensor(*shape),),
              device=PLACE, attrs=attrs)  # fmt: skip


def seconds_of(*ops):
    prepared = prepare(ops, [], threads=1)
    return dict(zip((o.name for o in prepared.wiring.ops), prepared.timing.seconds, strict=True))


def operations_of(*ops):
    wiring = prepare(ops, [], threads=1).wiring
    return {one.name: count_operations(wiring, node) for node, one in enumerate(wiring.ops)}


def test_a_product_takes_as_long_as_its_operations():
    found = seconds_of(
        arg("a", 0, 512, 512),
        arg("b", 1, 512, 512),
        arg("c", 2, 512, 4096),
        op("one", "_MklMatMul", "a", "b", shape=(512, 512)),
        op("eight", "_MklMatMul", "a", "c", shape=(512, 4096)),
        op("batch", "_MklBatchMatMulV2", "d", "d", shape=(64, 64, 64)),
        arg("d", 3, 64, 64, 64),
    )
    assert found["eight"] == pytest.approx(8 * found["one"], rel=0.1)
    # 64 products of 64^3 are as many operations as one of 256^3: an eighth.
    assert found["batch"] < found["one"]


def test_a_convolution_and_its_gradients_have_equal_numbers_of_operations():
    image, filters, out = (8, 32, 32, 64), (3, 3, 64, 64), (8, 32, 32, 64)
    found = operations_of(
        arg("x", 0, *image),
        arg("w", 1, *filters),
        arg("dy", 2, *out),
        arg("sizes", 3, 4),
        op("forward", "_MklNativeConv2D", "x", "w", shape=out),
        op("back", "_MklNativeConv2DBackpropInput", "sizes", "w", "dy", shape=image),
        op("filter", "_MklNativeConv2DBackpropFilter", "x", "sizes", "dy", shape=filters),
    )
    for name in ("forward", "back", "filter"):
        assert found[name] == 2 * 8 * 32 * 32 * 64 * 9 * 64


def test_a_depthwise_convolution_works_on_all_channels_at_once():
    image, filters = (8, 32, 32, 64), (3, 3, 64, 1)
    found = operations_of(
        arg("x", 0, *image),
        arg("w", 1, *filters),
        arg("sizes", 2, 4),
        op("forward", "_MklNativeDepthwiseConv2dNative", "x", "w", shape=image),
        op("filter", "_MklNativeDepthwiseConv2dNativeBackpropFilter", "x", "sizes", "x",
           shape=filters),
    )  # fmt: skip
    for name in ("forward", "filter"):
        assert found[name] == 2 * 8 * 32 * 32 * 64 * 9


def test_what_hands_a_tensor_on_does_not_read_it():
    found = seconds_of(
        arg("x", 0, 1 << 20),
        op("same", "Reshape", "x", shape=(1 << 20,)),
        op("twice", "Exp", "same", shape=(1 << 20,)),
    )
    assert found["same"] == INLINE_SECONDS
    assert 100 * found["same"] < found["twice"]


def test_tensors_of_unknown_shape_take_the_time_of_the_call():
    wiring = Wiring([Op("x", "_MklMatMul", outputs=(TensorSpec("float32", None),))],
                    [[]], [[]], [[]], [[]], [0], [True])  # fmt: skip
    assert estimate_timing(wiring, [MemoryPlan()], is_on_card=False).seconds[0] < 1e-4


def test_a_read_of_a_variable_takes_as_long_as_passing_a_tensor_on():
    found = seconds_of(
        Op("v", "_Arg", outputs=(TensorSpec("resource", ()),), device=PLACE, attrs={"index": 0}),
        op("read", "ReadVariableOp", "v", shape=(1 << 20,)),
    )
    assert found["read"] == INLINE_SECONDS


class NoMemory:
    """A ledger without buffers; ``trials`` counts trials of algorithms."""

    trials = 0

    def take(self):
        return []

    def release(self, buffer):
        raise AssertionError(buffer)


class Follower(TaskRunner):
    """Runs task 0 and its successors; lists the tasks in the order of their begins and ends."""

    def __init__(self, follow, tries=()):
        self.follow, self.tries, self.ledger = follow, tries, NoMemory()
        self.begun, self.ended = [], []

    roots = (0,)

    def node_of(self, task):
        return task

    def begin(self, task):
        self.ledger.trials += task in self.tries
        self.begun.append(task)

    def end(self, task, outputs):
        self.ended.append(task)
        return self.follow.get(task, [])

    def on(self, threads, seconds, waits=(), *, seed=1, expensive=False):
        """Return the threads that will run it; ``waits`` are the tasks that are copies."""
        timing = OpTiming(tuple(seconds), tuple(n in waits for n in range(len(seconds))))
        self.expensive = [expensive] * len(seconds)
        return Workers(self, timing, threads, seed)


@pytest.mark.parametrize(("lasts", "threads"), [(1e-9, {0}), (10.0, {0, 1})])
def test_a_sleeping_thread_takes_part_where_there_is_time_to_wake_it(lasts, threads):
    """Of two tasks the thread keeps one; the other goes to who is free first."""
    executor = Follower({0: [1, 2]})
    workers = executor.on(2, [1e-9, lasts, lasts], expensive=True)
    ran = {}
    going_on = workers._work  # which thread runs a task is seen nowhere else

    def spying(worker, now):
        executor.begin = lambda task: ran.setdefault(task, worker) and None
        going_on(worker, now)

    workers._work = spying
    workers.run()
    assert set(ran) == {0, 1, 2}
    assert set(ran.values()) == threads


def test_what_follows_a_copy_does_not_hold_up_what_was_ready_before_it():
    """0 makes 1, a copy, and 2 ready; 3 waits for the copy, and 4 follows 2."""
    executor = Follower({0: [1, 2], 1: [3], 2: [4]})
    executor.on(2, [1e-6] * 5, {1}).run()
    assert executor.begun == [0, 1, 2, 4, 3]
    assert executor.ended == [0, 2, 4, 1, 3]


def test_one_thread_finishes_its_line_before_it_takes_what_a_copy_made_ready():
    orders = []
    for threads in (1, 2):
        executor = Follower({0: [1, 2], 1: [3], 2: [4]})
        executor.on(threads, [1e-6, 1e-6, 10.0, 1e-6, 1e-6], {1}).run()
        orders.append(executor.begun)
    assert orders == [[0, 1, 2, 4, 3], [0, 1, 2, 3, 4]]


def test_copies_that_are_over_while_the_caller_sleeps_go_on_one_right_after_the_other():
    """0 makes three copies ready, 1 to 3, each followed by one of 4 to 6 that lasts."""
    gaps = []
    for seed in range(20):
        ended = []
        executor = Follower({0: [1, 2, 3], 1: [4], 2: [5], 3: [6]})
        workers = executor.on(4, [1e-6] * 7, {1, 2, 3}, seed=seed)
        calling = workers._call_back  # when it calls back is seen nowhere else

        def spying(now, calling=calling, ended=ended):
            ended.append(now)
            calling(now)

        workers._call_back = spying
        workers.run()
        gaps.append(ended[-1] - ended[0])
    assert max(gaps) == pytest.approx(3 * CALL_BACK_SECONDS)


def test_trying_algorithms_takes_longer_than_most_copies():
    orders = []
    for tries in ((), (2,)):
        executor = Follower({0: [1, 2], 1: [3], 2: [4]}, tries)
        executor.on(2, [1e-6] * 5, {1}, seed=2).run()
        orders.append(executor.begun)
    assert orders == [[0, 1, 2, 4, 3], [0, 1, 2, 3, 4]]
