"""What findings save is worked out on the timeline, and how much that matters follows from it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import with_recording

from analyzer.explain.all_findings import collect
from analyzer.explain.analysis import (
    Analysis,
    analyse,
    saved_without,
    saved_without_rows,
)
from analyzer.explain.questions.amplification import (
    Tensors,
    _last_wanted,
    find_summands,
)
from analyzer.explain.questions.layers import find_calls
from analyzer.explain.questions.peak_tensors import (
    find_batch_tensors,
    find_eager_results,
    find_state,
    find_whole_set,
    find_whole_tables,
)
from analyzer.explain.running.data_held import find_data
from analyzer.explain.running.leaks import find_larger_call
from analyzer.model.contract.fields import Category
from analyzer.model.contract.report_file import TrendFigures
from analyzer.model.contract.run_note import (
    LargeConstant,
    Op,
    Retrace,
    StepConfig,
    TensorSpec,
    TracedFunction,
    WatchNote,
)
from analyzer.model.graph.graph_index import GRADIENT_ROLE, build_graph_index
from analyzer.model.recording.attribution import label_eager
from analyzer.model.recording.labels import Labels
from analyzer.model.recording.records import (
    ALLOCATIONS,
    COPY_ROLE,
    EVENTS,
    Device,
    Finding,
    Kind,
    Recording,
    Severity,
    Step,
    conform,
)

MIB = 1 << 20
Row = tuple[
    int, int, int, Category, str, str
]  # bytes, born, dies, category, variable, shape


def analysis_of(
    *rows: Row, batch: int | None = None, mode: str = "train", **more: list[Any]
) -> Analysis:
    """Return the analysis of one step of 100 instants with these buffers; ``more`` are columns."""
    sizes, born, dies, categories, variables, shapes = (
        list(column) for column in zip(*rows, strict=False)
    )
    table = pd.DataFrame(
        {
            **{name: "" for name, dtype in ALLOCATIONS.items() if dtype == "category"},
            "allocator": "a",
            "requested_bytes": sizes,
            "allocated_bytes": sizes,
            "born": born,
            "dies": dies,
            "category": [category.value for category in categories],
            "variable": variables,
            "shape": shapes,
            "layer": "dense",
            "dtype": "float32",
            "op": [f"op{number}" for number in range(len(rows))],
            "run_id": 0,
            "step": 0,
        }
    ).assign(
        **dict.fromkeys(
            ("address", "born_ps", "dies_ps", "turns_at", "part_of"), pd.NA
        ),
        **more,
    )
    events = pd.DataFrame(columns=list(EVENTS)).astype(EVENTS).reindex(range(100))
    recording = Recording(
        kind=Kind.ESTIMATE,
        target={},
        device=Device(kind="cpu", name="x"),
        step_config=StepConfig(mode=mode, batch_size=batch, optimizer="SGD"),
        events=events,
        allocations=conform(table, ALLOCATIONS),
        allocator="a",
        steps=(Step(index=0, number=0, first=0, last=99),),
    )
    return analyse(recording)


def buffer(
    size: int,
    born: int,
    dies: int,
    category: Category,
    variable: str = "",
    shape: str = "",
) -> Row:
    return size, born, dies, category, variable, shape


@pytest.mark.parametrize(("others", "is_said"), [(18, True), (200, False)])
def test_savings_below_a_hundredth_of_the_limit_are_left_out(
    others: int, is_said: bool
) -> None:
    # GIVEN half the batch of a step saves 0.5 MiB
    rows = [
        buffer(MIB // 8, 10 + i, 50 - i, Category.ACTIVATION, "", "[8,4096]")
        for i in range(8)
    ]
    # WHEN the memory beside it is small or large
    kernel = buffer(others * MIB, -1, 100, Category.PARAMETER, "kernel")
    scratch = buffer(MIB, 20, 50, Category.WORKSPACE)
    types = ["", "", *["float64"] * 8]
    found = collect(analysis_of(kernel, scratch, *rows, batch=8, dtype=types)).findings
    # THEN only savings of at least 1 % are said, first the one that keeps the batch; no setting limits
    # a workspace on a CPU
    said = ["float64", "batch-tensors"] * is_said
    assert [one.id for one in found] == said


def test_half_the_batch_shrinks_only_tensors_of_the_batch() -> None:
    rows = [buffer(8 * MIB, 10, 50, Category.ACTIVATION, "", "[32,65536]")]
    rows += [buffer(4 * MIB, 10, 50, Category.ACTIVATION, "", "[100,10485]")]
    rows += [buffer(MIB, -1, 100, Category.PARAMETER, "kernel", "[64,4,1024]")]
    rows += [buffer(MIB, 20, 50, Category.GRADIENT, "", "[1024,64,4]")]
    (found,) = find_batch_tensors(analysis_of(*rows, batch=32))
    assert found.saves_bytes == 4 * MIB
    assert "cuDNN" not in found.detail  # as no workspace grows
    # a weight that its op casts to half precision has no axis of the batch
    ops = ["net/dense/MatMul/Cast", "op1", "op2", "op3"]
    cast = analysis_of(*rows, batch=32, op=ops)
    assert sum(one.saves_bytes or 0 for one in find_batch_tensors(cast)) == 0
    # pairs of two views of each example fall to a quarter, unless a variable has an axis of that length
    pairs = buffer(8 * MIB, 10, 50, Category.ACTIVATION, "", "[64,64]")
    # and a workspace's bytes have no batch
    scratch = buffer(MIB, 10, 50, Category.WORKSPACE, "", "[1048576]")
    (found,) = find_batch_tensors(analysis_of(pairs, scratch, batch=32))
    assert found.saves_bytes == 6 * MIB
    (found,) = find_batch_tensors(analysis_of(pairs, *rows[2:], batch=32))
    assert found.saves_bytes == 4 * MIB
    # zeros that stand for the gradient of an output have its batch, here after the time steps
    zeros = buffer(8 * MIB, -1, 100, Category.CONSTANT, "", "[9,32,7281]")
    (found,) = find_batch_tensors(analysis_of(zeros, batch=32, op=["gradients/AddN"]))
    assert found.saves_bytes == 4 * MIB
    # cuDNN packs 262,144 weights of a recurrent layer into a vector; its reserved space has the batch
    vectors = [
        buffer(8 * MIB, 10, 50, Category.ACTIVATION, "", shape)
        for shape in ("[270336]", "[2097152]")
    ]
    layers = ["lstm", "lstm", "lstm/cell"]
    (found,) = find_batch_tensors(
        analysis_of(*vectors, rows[2], batch=32, layer=layers)
    )
    assert found.saves_bytes == 4 * MIB
    # without a known batch size, most activations have multiples of it: rows of batch x length are no
    # batch, and XLA's layouts may have it last; the line of a small tensor stands for no larger one
    shapes = ("[2496,840]", "[2496,840]", "[64,39,840]", "[5,840,64]")
    rows = [buffer(8 * MIB, 10, 50, Category.ACTIVATION, "", one) for one in shapes]
    rows += [buffer(MIB, 10, 50, Category.INPUT, "", "[64,640,640,3]")]
    lines = ["", "", "", "", "small.py:1"]
    _, found = find_batch_tensors(analysis_of(*rows, source=lines))
    assert found.title.endswith(
        ", if the batch has 64 examples: 33.00 MiB in 5 tensors (100% of the peak)"
    )
    assert "0.7 of height" in found.detail


def test_a_second_peak_nearly_as_high_leaves_little_to_save() -> None:
    # GIVEN a large buffer at the peak, and another instant that is nearly as high
    analysis = analysis_of(
        buffer(10 * MIB, 10, 20, Category.TEMPORARY),
        buffer(9 * MIB, 50, 60, Category.TEMPORARY),
    )
    # WHEN the first is gone, THEN the second one is the peak
    assert saved_without(analysis, [10 * MIB], [10], [20]) == MIB
    # only while it is gone
    assert saved_without(analysis, [10 * MIB], [10], [19]) == 0
    assert saved_without_rows(analysis, analysis.rows[:0], added=MIB) == 0


@pytest.mark.parametrize(
    ("optimizer", "ended", "saves"),
    [("SGD", "", []), ("Adam", "", [2 * MIB]), ("Adam", "ValueError", [])],
)
def test_only_an_optimizer_with_several_slots_can_have_fewer(
    optimizer: str, ended: str, saves: list[int]
) -> None:
    state = buffer(4 * MIB, -1, 100, Category.OPTIMIZER_STATE, "slots")
    analysis = analysis_of(state, buffer(MIB, -1, 100, Category.PARAMETER, "kernel"))
    config = StepConfig(optimizer=optimizer)
    watch = WatchNote(whole_run=True, ended=ended)
    found = find_state(with_recording(analysis, step_config=config, watch=watch))
    assert [one.saves_bytes for one in found] == saves


@pytest.mark.parametrize(("last", "shown"), [(100, 1), (99, 0)])
def test_a_script_shows_its_last_step_of_the_highest_peak(
    last: int, shown: int
) -> None:
    first = buffer(100 * MIB, 10, 20, Category.ACTIVATION)
    second = buffer(last * MIB, 60, 70, Category.ACTIVATION)
    recording = analysis_of(first, second).recording
    steps = (
        Step(index=0, number=0, first=0, last=49),
        Step(index=1, number=1, first=50, last=99),
    )
    analysis = analyse(replace(recording, steps=steps, watch=WatchNote()))
    assert analysis.step == steps[shown]


def test_an_op_has_its_own_line_not_that_of_its_call() -> None:
    ops = [
        Op("call", "PartitionedCall", source="fit.py:9"),
        Op("call/mul", "Mul", source="loss.py:3"),
    ]
    analysis = analysis_of(buffer(MIB, 1, 9, Category.ACTIVATION))
    tensors = Tensors(analysis, build_graph_index(ops))
    assert tensors.line_of({"op": "call/mul"}) == "loss.py:3"


def test_a_vector_with_a_new_axis_is_combined_with_another_on_purpose() -> None:
    column = (TensorSpec("float32", (4, 1)),)
    op = Op("column", "StridedSlice", inputs=("x:0",), outputs=column)
    vector = buffer(16, 1, 9, Category.ACTIVATION, "", "[4]")
    tensors = Tensors(analysis_of(vector, tensor=["x:0"]), build_graph_index([op]))
    assert tensors.source_of("column:0") == ("[4]", 16)


def test_rows_of_a_table_are_no_examples() -> None:
    table = buffer(MIB, 1, 99, Category.TEMPORARY, "", "[4096,64]")
    sines = buffer(MIB, 1, 99, Category.ACTIVATION, "", "[4096,64]")
    analysis = analysis_of(table, sines, mode="infer", layer=["dense", ""])
    watch = WatchNote(whole_run=True)
    assert not [*find_whole_set(with_recording(analysis, watch=watch))]
    # activations have examples, also in a step without a program
    made = buffer(MIB, 1, 99, Category.ACTIVATION, "", "[4096,64]")
    assert [*find_whole_set(analysis_of(made, mode="infer"))]


def test_calls_of_a_layer_in_one_tape_can_be_made_one_by_one() -> None:
    rows = [buffer(MIB, 10 + i, 50, Category.ACTIVATION) for i in range(8)]
    ops = ["Relu"] * 8
    layers = ["dense", ""] * 4
    (found,) = find_calls(analysis_of(*rows, op=ops, layer=layers))
    assert found.saves_bytes == 3 * MIB
    # equal results of one call are no calls
    layers = ["block", "block/dense"] * 4
    assert not [*find_calls(analysis_of(*rows, op=ops, layer=layers))]


def test_what_saves_more_or_is_no_fault_comes_first() -> None:
    # GIVEN a kernel of flattened images is a tenth of the peak, and the batch is the rest
    kernel = buffer(4 * MIB, -1, 100, Category.PARAMETER, "kernel", "[16384,64]")
    images = buffer(36 * MIB, 10, 50, Category.ACTIVATION, "", "[4,2359296]")
    flat, pooled = (TensorSpec("float32", (4, *one)) for one in ((16384,), (64, 64, 4)))
    ops = [
        Op("pool", "MaxPool", outputs=(pooled,)),
        Op("flat", "Reshape", ("pool:0",), outputs=(flat,)),
    ]
    # AND the program compiles its model again, to train a loaded network
    base = Finding(
        id="trained-base",
        severity=Severity.LOW,
        title="",
        detail="",
        saves_bytes=5 * MIB,
    )
    analysis = with_recording(
        analysis_of(kernel, images, batch=4, layer=["dense", "pool"]),
        structure=build_graph_index(ops),
        watch=WatchNote(step_objects=2),
    )
    found = collect(replace(analysis, findings=(base,))).findings
    assert [one.id for one in found] == ["batch-tensors", "wide-kernel", base.id]


def test_a_kernel_of_another_network_has_no_wanted_gradient() -> None:
    # GIVEN two calls' gradients of a kernel are added up, then those of a bias
    gradients = pd.DataFrame(
        {
            "born": [12, 20, 22, 40],
            "dies": [21, 60, 60, 70],
            "shape": ["[4,4]", "[4,4]", "[4]", "[4,4]"],
            "op": ["MatMul", "AddN", "AddN", "MatMul"],
            "role": ["", GRADIENT_ROLE, GRADIENT_ROLE, ""],
        }
    )
    # WHEN another network has a kernel of that shape, THEN its gradient is not the last wanted one
    assert _last_wanted(gradients) == 12


def test_ops_of_a_function_do_not_run_from_python() -> None:
    rows = [buffer(8 * MIB, 10, 50, Category.ACTIVATION)]
    rows += [buffer(MIB, 60, 70, Category.GRADIENT)]
    analysis = analysis_of(*rows, op=["call/Relu", "Mul"])
    eager = with_recording(analysis, step_config=StepConfig(eager=True))
    assert not [*find_eager_results(eager)]


def test_a_dense_gradient_of_a_table_is_no_fault_of_the_optimizer() -> None:
    # GIVEN a table with a regularizer, whose gradient has a number for each row
    analysis = analysis_of(
        buffer(4 * MIB, -1, 100, Category.PARAMETER, "table"),
        buffer(4 * MIB, -1, 100, Category.OPTIMIZER_STATE),
        buffer(4 * MIB, 10, 50, Category.GRADIENT),
    )
    graph = build_graph_index([Op("find", "GatherV2")])
    graph = replace(graph, layers={"find": "dense"})
    (found,) = find_whole_tables(with_recording(analysis, structure=graph))
    assert (found.id, found.saves_bytes) == ("dense-gradient", None)


def test_a_larger_call_is_named_also_if_the_trace_has_it() -> None:
    analysis = analysis_of(
        buffer(MIB, 0, 40, Category.ACTIVATION),
        buffer(9 * MIB, 60, 90, Category.ACTIVATION),
    )
    step = replace(analysis.recording.steps[0], last=50)
    watch = WatchNote(
        steps=1,
        where="a.py:1",
        peak_call="a.py:2",
        own_peaks=(9 * MIB,),
    )

    (found,) = find_larger_call(
        with_recording(analysis, steps=(step,), watch=watch), watch
    )

    assert found.saves_bytes == 8 * MIB


def test_a_data_set_beside_the_device_is_no_finding() -> None:
    analysis = analysis_of(buffer(9 * MIB, 0, 99, Category.INPUT))
    data = LargeConstant(
        kind="held", where="", dtype="uint8", shape=(2048, 9), size_bytes=9 * MIB
    )
    flat = TrendFigures(trend="flat")
    assert not [*find_data(analysis, WatchNote(constants=(data,)), flat)]


@pytest.mark.parametrize(("op", "count"), [("Pack", 0), ("AddV2", 1)])
def test_rows_of_an_eager_jacobian_are_not_added_up(op: str, count: int) -> None:
    analysis = analysis_of(
        buffer(MIB, -1, 100, Category.PARAMETER, "kernel", "[512,512]"),
        buffer(8 * MIB, 50, 90, Category.ACTIVATION, "", "[8,512,512]"),
        *[buffer(MIB, 1, 80, Category.GRADIENT, "", "[512,512]")] * 8,
        *[buffer(MIB, 1, 9, Category.ACTIVATION)] * 2,
        op=["", op, *["MatMul"] * 10],
        source=["", "softmax.py:1", *[""] * 8, *["loop.py:1"] * 2],
    )
    found = [*find_summands(analysis)]
    assert len(found) == count
    # one use in a loop: the line that runs most ops, not one that is alive at the peak
    assert all("loop.py:1" in one.title for one in found)


def test_a_layout_copy_of_an_eager_convolution_is_workspace() -> None:
    recording = analysis_of(buffer(MIB, 1, 9, Category.TEMPORARY)).recording
    table = recording.allocations.assign(
        op="Conv2D", region="temp", allocator="GPU_0_bfc"
    )
    labels = Labels(1)
    label_eager(
        labels,
        table,
        recording.steps,
        np.array([0]),
        np.array([], int),
        np.array([False]),
        infer=False,
        jit=False,
    )
    assert labels.role[0] == COPY_ROLE


def test_a_later_phase_of_training_is_no_saving() -> None:
    analysis = analysis_of(buffer(MIB, 0, 40, Category.ACTIVATION))
    again = Retrace(step=7, call=8, changed="a new function object")
    step = TracedFunction(
        name="train",
        where="a.py:9",
        called_at="a.py:2",
        calls=9,
        retraces=(again,),
    )
    watch = WatchNote(
        step="a call of train",
        steps=9,
        where="a.py:1",
        peak_call="a.py:2",
        own_peaks=(9 * MIB,),
        functions=(step,),
    )

    (found,) = find_larger_call(with_recording(analysis, watch=watch), watch)

    assert (found.id, found.saves_bytes) == ("later-steps", None)
    assert "after the first 7 " in found.title
