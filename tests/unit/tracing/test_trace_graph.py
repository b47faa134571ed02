from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder

import analyzer
from analyzer.tracing.derive.op_names import make_type_finder, plain_scope
from analyzer.tracing.derive.run_steps import name_card
from analyzer.tracing.measure.measured_recording import Measured, open_measured
from analyzer.tracing.measure.workspaces import find_algorithm

KIB = 1024
GPU = "/device:GPU:0"
RUN = 77
FORWARD, BACKWARD, UPDATE = "net/conv/Conv2D", "gradient_tape/net/conv/Conv2D/", "Adam/Adam/update/"


class Card(TraceBuilder):
    """A trace of a card: each kernel has a launch on the host and an annotation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def launch(self, time_ns: int, kernel: str, annotation: str) -> None:
        self.numbers += 1
        self.event(kernel, time_ns, correlation_id=self.numbers)
        self.event(kernel, time_ns, plane=GPU, correlation_id=self.numbers, annotation=annotation)


def training(start: int = 0, run: int = RUN) -> Card:
    """A step of one convolution: copy, forward, backward, update."""
    return add_training(Card(), start, run)


def add_training(trace: Card, start: int, run: int) -> Card:
    def at(time: int) -> int:
        return start + time

    def place(number: int) -> int:
        return (start + 1) * 0x100000 + number * 0x10000

    facts: dict[str, Any] = {"data_type": 1, "run_id": run}
    trace.event("ExecutorState::Process", at(1), duration_ns=900, id=run)
    copy = "IteratorGetNext/_4:_Recv#from=IteratorGetNext,to=net/conv/Conv2D#::#edge_name=e#"
    trace.allocate(
        at(5), place(1), 8 * KIB, op="SameWorkerRecvDone", region="dynamic", shape="[2048]"
    )
    trace.launch(at(6), "MemcpyH2D", copy)
    trace.allocate(at(10), place(2), 32 * KIB, op=FORWARD, shape="[8,1024]", **facts)
    trace.allocate(at(11), place(3), 4 * KIB, op=FORWARD, region="temp", shape="[4,4,8,8]", **facts)
    trace.allocate(at(12), place(4), 64 * KIB, op=FORWARD, region="temp", shape="[65536]",
                   data_type=4, run_id=run)  # fmt: skip
    trace.launch(at(13), "fft2d_r2c_32x32", f"{FORWARD}:Conv2D")
    trace.free(at(14), place(4)).free(at(15), place(3))
    trace.allocate(at(20), place(5), 32 * KIB, op="net/Relu", shape="[8,1024]", **facts)
    trace.launch(at(21), "EigenMetaKernel", "net/Relu:Relu")
    trace.free(at(22), place(2))
    gradient = f"{BACKWARD}Conv2DBackpropFilter"
    relu = "gradient_tape/net/ReluGrad"
    trace.allocate(at(30), place(6), 32 * KIB, op=relu, shape="[8,1024]", **facts)
    trace.launch(at(31), "EigenMetaKernel", f"{relu}:ReluGrad")
    trace.free(at(32), place(5))
    trace.allocate(at(40), place(7), 16 * KIB, op=gradient, shape="[4096]", **facts)
    trace.launch(at(41), "maxwell_scudnn_winograd_128x128", f"{gradient}:Conv2DBackpropFilter")
    trace.free(at(42), place(1)).free(at(43), place(6))
    trace.launch(at(50), "ApplyAdamKernel", f"{UPDATE}ResourceApplyAdam:ResourceApplyAdam")
    trace.free(at(51), place(7))
    return trace


def measured(trace: TraceBuilder, folder: Path) -> Measured:
    return open_measured(trace.write(folder / "host.xplane.pb"))


def labels_of(result: Measured) -> dict[tuple[str, str], tuple[str, str, str]]:
    table = result.recording.allocations
    return {
        (str(row["op"]), str(row["region"])): (row["category"], row["role"], row["layer"])
        for _, row in table.iterrows()
    }


def test_a_run_of_a_function_is_a_step(tmp_path: Path) -> None:
    # GIVEN two runs of a function without step marks, and an eager op after them
    trace = add_training(training(), 2000, RUN + 1)
    trace.allocate(4000, 0x9000, 256, op="LogicalAnd").free(4010, 0x9000)
    # WHEN the trace is measured THEN each run is a step, and nothing is said about marks
    recording = measured(trace, tmp_path).recording
    assert [(step.start_ps, step.end_ps) for step in recording.steps] == [
        (1_000, 901_000),
        (2_001_000, 2_901_000),
    ]
    assert not any("step markers" in warning for warning in recording.warnings)


def test_names_kernels_and_frees_give_category_and_layer(tmp_path: Path) -> None:
    found = labels_of(measured(training(), tmp_path))
    assert found["IteratorGetNext/_4", "dynamic"][0] == "input"
    assert found[FORWARD, "output"] == ("activation", "read in the forward pass only", "net/conv")
    assert found[FORWARD, "temp"] == ("workspace", "layout copy", "net/conv")
    assert found[FORWARD, "workspace"] == (
        "workspace",
        "forward workspace, FFT with tiles",
        "net/conv",
    )
    assert found["net/Relu", "output"] == ("activation", "kept for the backward pass", "net")
    assert found["gradient_tape/net/ReluGrad", "output"] == (
        "gradient",
        "gradient read in the backward pass",
        "net",
    )
    assert found[f"{BACKWARD}Conv2DBackpropFilter", "output"] == (
        "gradient",
        "gradient",
        "net/conv",
    )


def test_early_shapes_do_not_begin_the_backward_pass(tmp_path: Path) -> None:
    # GIVEN a shape of the tape before the forward pass, and a metric that the function returns
    trace = Card()
    trace.allocate(2, 0x100, 256, op="gradient_tape/Shape/_3", shape="[2]", run_id=RUN)
    add_training(trace, 0, RUN)
    trace.allocate(60, 0x200, 256, op="div_no_nan", shape="[]", data_type=1, run_id=RUN)
    trace.free(950, 0x200)
    found = labels_of(measured(trace, tmp_path))
    # THEN a value that is freed in the forward pass does not wait for the backward pass
    assert found[FORWARD, "output"][:2] == ("activation", "read in the forward pass only")
    assert found["div_no_nan", "output"][:2] == ("temporary", "outlives the step")


def test_an_op_of_the_tape_before_the_loss_carries_no_gradient(tmp_path: Path) -> None:
    # GIVEN a step with a product of the tape that begins early, and one after the loss
    trace = Card()
    early, late = "gradient_tape/net/conv/mul/Mul", "gradient_tape/net/conv/mul/Mul_1"
    facts: dict[str, Any] = {"data_type": 1, "run_id": RUN, "shape": "[8,1024]"}
    trace.allocate(8, 0x10000, 32 * KIB, op=early, **facts)
    add_training(trace, 0, RUN)
    trace.allocate(33, 0x20000, 32 * KIB, op=late, **facts)
    # AND a dense term of a sum of gradients outside the tape's scope, and a mask in the forward pass
    trace.allocate(42, 0x30000, 32 * KIB, op="AddN_1/inputs_0", **facts)
    trace.allocate(16, 0x40000, 8 * KIB, op="net/IsFinite", region="", run_id=RUN)
    trace.free(17, 0x40000)
    for number in range(1, 4):
        trace.free(45 + number, number << 16)
    # WHEN the trace is measured THEN only what follows the loss is a gradient
    found = {op: labels[:2] for (op, _), labels in labels_of(measured(trace, tmp_path)).items()}
    assert found[early] == ("temporary", "backward temporary")
    assert found[late] == ("gradient", "gradient read in the backward pass")
    assert found["AddN_1/inputs_0"][0] == "gradient"
    assert found["net/IsFinite"][0] == "temporary"


def test_partial_sums_of_a_bias_gradient_are_workspace(tmp_path: Path) -> None:
    trace, op = training(), "gradient_tape/net/conv/BiasAdd/BiasAddGrad"
    trace.allocate(44, 0x900000, 32 * KIB, op=op, region="temp", shape="[64,128]", data_type=1,
                   run_id=RUN).free(46, 0x900000)  # fmt: skip
    # AND the scratch of a reduction, which has bytes for elements
    trace.allocate(45, 0xA00000, 256, op=f"{op}_1", region="temp", shape="[1]", data_type=4,
                   run_id=RUN).free(46, 0xA00000)  # fmt: skip
    found = labels_of(measured(trace, tmp_path))
    assert found[op, "temp"] == ("workspace", "partial sums of a bias gradient", "net/conv")
    assert found[f"{op}_1", "temp"][0] == "temporary"


def test_the_value_that_a_moving_average_replaces_is_one(tmp_path: Path) -> None:
    # GIVEN a step whose batch normalization makes new averages, and memory from before that it frees
    trace, op = Card(), "net/bn/FusedBatchNormV3"
    trace.allocate(0, 0xB00000, 4 * KIB)
    del trace.line().events[:]
    add_training(trace, 0, RUN)
    for number, size in enumerate((32 * KIB, 4 * KIB, 4 * KIB)):
        trace.allocate(23, 0xC00000 + (number << 16), size, op=op, data_type=1, run_id=RUN)
    trace.launch(24, "EigenMetaKernel", f"{op}:FusedBatchNormV3")
    trace.free(25, 0xB00000).free(26, 0xC00000)
    table = measured(trace, tmp_path).recording.allocations
    roles = table.loc[table["category"] == "parameter", "role"].astype(str)
    assert set(roles) >= {"new value of a moving average", "old value of a moving average"}


def test_an_op_inside_the_scope_of_two_gradients_has_one_of_their_types() -> None:
    # GIVEN the two convolutions of a separable one, whose gradients share a scope
    kinds = ("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter")
    names = [f"gradient_tape/net/separable/{kind}" for kind in kinds]
    inner = "net/separable/depthwise"
    find_type = make_type_finder({}, {"net/separable", inner, *names}, (), ())
    # THEN the name of the inner op says which type is its own
    assert find_type(inner) == "DepthwiseConv2dNative"
    assert find_type("net/separable") == "Conv2D"


def test_constants_of_a_function_are_no_eager_ops(tmp_path: Path) -> None:
    # GIVEN a constant that is copied to the card when the function is instantiated
    trace, name = Card(), "net/norm/scalar"
    trace.allocate(4, 0x700000, 256, op=name, region="dynamic", shape="[]", data_type=1)
    add_training(trace, 0, RUN)
    trace.free(900, 0x700000)
    # THEN it is no batch from the host
    assert labels_of(measured(trace, tmp_path))[name, "dynamic"][:2] == (
        "constant",
        "constant computed beforehand",
    )


def test_an_eager_backward_pass_begins_after_the_loss(tmp_path: Path) -> None:
    # GIVEN an eager step: forward, loss, its gradient, kernels, and the optimizer's scalars
    trace = Card()

    def run(time: int, op: str, freed: int, size: int = 4 * KIB, region: str = "output") -> None:
        shape = "[]" if size == 4 else "[1024]"
        trace.allocate(time, time << 16, 4 * KIB, requested=size, op=op, region=region,
                       shape=shape, data_type=1)  # fmt: skip
        frees.append((freed, time << 16))

    frees: list[tuple[int, int]] = []
    run(5, "Conv2D", 95, region="dynamic")
    run(10, "Conv2D", 55)
    run(20, "Mean", 95, 4)
    run(30, "Tile", 42)
    run(40, "BiasAddGrad", 95)
    run(50, "Conv2DBackpropFilter", 95)
    run(60, "Pow", 85, 4)
    for freed, address in sorted(frees):
        trace.free(freed, address)
    trace.event("ResourceApplyAdam:ResourceApplyAdam", 80, duration_ns=1)
    table = measured(trace, tmp_path).recording.allocations
    found = {(op.partition("#")[0], region): (category, role) for op, region, category, role in zip(
        table["op"], table["region"], table["category"], table["role"], strict=True)}  # fmt: skip
    # THEN the gradient of the loss is no activation, and the optimizer's scalars are no gradients
    assert found["Conv2D", "dynamic"] == ("input", "copied from the host")
    assert found["Conv2D", "output"] == ("activation", "kept for the backward pass")
    assert found["Tile", "output"] == ("gradient", "gradient read in the backward pass")
    assert found["Pow", "output"] == ("temporary", "optimizer temporary")


def test_each_edge_names_its_evidence(tmp_path: Path) -> None:
    graph = measured(training(), tmp_path).recording.graph
    assert graph is not None
    edges = {(a[1], b[1]): data.get("evidence") for a, b, data in graph.edges(data=True)}
    gradient = f"{BACKWARD}Conv2DBackpropFilter"
    assert edges["net/Relu:0", "gradient_tape/net/ReluGrad"] == "free"
    assert edges["IteratorGetNext:0", "IteratorGetNext/_4"] == "copy"
    assert edges[FORWARD, gradient] == "name"
    assert edges[f"{gradient}:0", f"{UPDATE}ResourceApplyAdam"] == "free"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            48 * KIB + 512, {"parameter": 16 * KIB, "optimizer_state": 32 * KIB, "unattributed": 512},
            id="a parameter and two slots of Adam, and a remainder",
        ),
        pytest.param(
            20 * KIB, {"parameter": 16 * KIB, "unattributed": 4 * KIB}, id="no room for the slots"
        ),
        pytest.param(8 * KIB, {"unattributed": 8 * KIB}, id="less than the parameter"),
    ],
)  # fmt: skip
def test_memory_from_before_the_trace_is_divided(
    before: int, expected: dict[str, int], tmp_path: Path
) -> None:
    # GIVEN memory that was in use before the first event
    trace = Card()
    trace.allocate(0, 0x100, before)
    del trace.line().events[:]
    # WHEN a step of Adam follows
    recording = measured(add_training(trace, 0, RUN), tmp_path).recording
    # THEN it is divided by the gradients' sizes, and the sums still equal TensorFlow's
    earlier = recording.allocations[recording.allocations["born"] < 0]
    assert earlier.groupby("category", observed=True)["allocated_bytes"].sum().to_dict() == expected
    assert recording.integrity is not None
    assert not any(check.disagreeing for check in recording.integrity.counters)


def test_a_step_with_trials_is_not_the_steady_step(tmp_path: Path) -> None:
    # GIVEN a last step in which a convolution tries an algorithm with a large workspace
    trace = add_training(training(), 2000, RUN + 1)
    trace.allocate(2016, 0x7000, 64 << 20, op=FORWARD, region="", run_id=RUN + 1).free(2017, 0x7000)
    # WHEN the trace is explained
    document = analyzer.open_trace(trace.write(tmp_path / "host.xplane.pb")).document
    # THEN the peak is that of the step before, and no finding divides a tensor
    assert document["peak"]["step"] == 0
    assert document["peak"]["requested_bytes"] < 1 << 20
    found = {finding["id"]: finding for finding in document["findings"]}
    assert "large-tensor" not in found


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        (["cudnn::winograd_nonfused::winogradForwardData4x4"], "Winograd, not fused"),
        (["volta_scudnn_winograd_128x128_ldg1"], "Winograd"),
        (["fft2d_r2c_16x16", "volta_cgemm_32x32_tn"], "FFT"),
        (["turing_h1688cudnn_256x64_ldg8_relu"], "tensor cores"),
        (["volta_scudnn_128x64_relu_interior_nn_v1"], "implicit GEMM"),
        (["EigenMetaKernel"], ""),
    ],
)
def test_kernels_name_the_algorithm(kernels: list[str], expected: str) -> None:
    assert find_algorithm(kernels) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param(
            {"core_count": 40, "compute_cap_major": 7, "compute_cap_minor": 5}
            | {"memory_size": 15_843_721_216, "memory_bandwidth": 320_064_000_000},
            "Tesla T4",
            id="a card of the catalogue",
        ),
        pytest.param(
            {"core_count": 3, "memory_size": 1 << 30, "compute_cap_major": 5},
            "GPU with 3 multiprocessors, 1.00 GiB",
            id="no card has these figures",
        ),
        pytest.param({}, "", id="no figures"),
    ],
)
def test_the_properties_of_a_plane_name_the_card(facts: dict[str, int], expected: str) -> None:
    assert name_card(facts) == expected


def test_a_result_that_a_convolution_replaces_by_its_copy_is_no_gradient(tmp_path: Path) -> None:
    # GIVEN a convolution that computes into scratch memory and drops the buffer of its result
    trace = Card()
    name, user = "gradient_tape/net/conv/Conv2D/Conv2DBackpropInput", "gradient_tape/net/ReluGrad"
    trace.event("ExecutorState::Process", 1, duration_ns=900, id=RUN)
    facts: dict[str, Any] = {"data_type": 1, "run_id": RUN}
    trace.allocate(10, 0x10000, 32 * KIB, op=name, shape="[8,16,64]", **facts)
    trace.allocate(11, 0x20000, 32 * KIB, op=name, region="temp", shape="[8,64,16]", **facts)
    trace.launch(12, "cudnn_dgrad", f"{name}:Conv2DBackpropInput")
    trace.free(13, 0x10000)
    trace.allocate(20, 0x30000, 32 * KIB, op=user, shape="[8,64,16]", **facts)
    trace.launch(21, "EigenMetaKernel", f"{user}:ReluGrad")
    trace.free(22, 0x20000)
    # WHEN the trace is opened
    table = measured(trace, tmp_path).recording.allocations
    # THEN the buffer that is used later is the gradient
    found = table[table["op"] == name].set_index("region")["category"]
    assert found.to_dict() == {"output": "workspace", "temp": "gradient"}


def test_a_scope_of_grappler_is_no_layer() -> None:
    name = "gradient_tape/net/dropout/ArithmeticOptimizer/ReorderCastLike_float_Cast"
    assert plain_scope(name) == "net/dropout"
