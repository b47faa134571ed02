from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builders import TraceBuilder

from analyzer.model.contract.run_note import Op
from analyzer.model.recording.records import Recording
from analyzer.tracing.measure.measured_recording import (
    name_card,
    name_functions,
    open_measured,
)

KIB = 1024
GPU = "/device:GPU:0"
RUN = 77
FORWARD, BACKWARD, UPDATE = (
    "net/conv/Conv2D",
    "gradient_tape/net/conv/Conv2D/",
    "Adam/Adam/update/",
)


class Card(TraceBuilder):
    """A trace of a card: each kernel has a launch on the host and an annotation."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def launch(self, time_ns: int, kernel: str, annotation: str) -> None:
        self.numbers += 1
        self.event(kernel, time_ns, correlation_id=self.numbers)
        self.event(
            kernel,
            time_ns,
            plane=GPU,
            correlation_id=self.numbers,
            annotation=annotation,
        )


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
        at(5),
        place(1),
        8 * KIB,
        op="SameWorkerRecvDone",
        region="dynamic",
        shape="[2048]",
    )
    trace.launch(at(6), "MemcpyH2D", copy)
    trace.allocate(at(10), place(2), 32 * KIB, op=FORWARD, shape="[8,1024]", **facts)
    trace.allocate(
        at(11), place(3), 4 * KIB, op=FORWARD, region="temp", shape="[4,4,8,8]", **facts
    )
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
    trace.launch(
        at(41), "maxwell_scudnn_winograd_128x128", f"{gradient}:Conv2DBackpropFilter"
    )
    trace.free(at(42), place(1)).free(at(43), place(6))
    trace.launch(
        at(50), "ApplyAdamKernel", f"{UPDATE}ResourceApplyAdam:ResourceApplyAdam"
    )
    trace.free(at(51), place(7))

    return trace


def measured(trace: TraceBuilder, folder: Path) -> Recording:
    return open_measured(trace.write(folder / "host.xplane.pb"))


def test_a_run_of_a_function_is_a_step(tmp_path: Path) -> None:
    # GIVEN two runs of a function without step marks, and an eager op after them
    trace = add_training(training(), 2000, RUN + 1)
    trace.allocate(4000, 0x9000, 256, op="LogicalAnd").free(4010, 0x9000)
    # WHEN the trace is measured THEN each run is a step, and nothing is said about marks
    recording = measured(trace, tmp_path)
    assert [(step.start_ps, step.end_ps) for step in recording.steps] == [
        (1_000, 901_000),
        (2_001_000, 2_901_000),
    ]
    assert not any("step markers" in warning for warning in recording.warnings)


def test_names_kernels_and_frees_give_category_and_layer(tmp_path: Path) -> None:
    table = measured(training(), tmp_path).allocations
    found = {
        (row["op"], row["region"]): (row["category"], row["role"], row["layer"])
        for row in table.to_dict("records")
    }
    assert found["SameWorkerRecvDone", "dynamic"][0] == "input"
    assert found[FORWARD, "output"] == (
        "activation",
        "read in the forward pass only",
        "net/conv",
    )
    assert found[FORWARD, "temp"] == ("workspace", "layout copy", "net/conv")
    assert found[FORWARD, "workspace"] == (
        "workspace",
        "forward workspace",
        "net/conv",
    )
    assert found["net/Relu", "output"] == (
        "activation",
        "kept for the backward pass",
        "net",
    )
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
def test_the_properties_of_a_plane_name_the_card(
    facts: dict[str, int], expected: str
) -> None:
    assert name_card(facts) == expected


def test_the_ops_of_a_run_get_the_prefix_of_its_function() -> None:
    # GIVEN the step, a function that shares a name with it, a run of each, and an eager op
    made = ["Relu", "MatMul", "Relu", "Exp", "Exp/tmp_var", "Relu"]
    rows = {"op": made, "run_id": [1, 1, 2, 2, 2, 3]}
    names = ("Relu", "MatMul", "other/Relu", "other/Exp")
    ops = [Op(name, name.rpartition("/")[2]) for name in names]
    # THEN only the second run is of the other function, with a part of an op
    named = name_functions(pd.DataFrame(rows), ops, ["other/"])
    assert [*named["op"]] == [*names, "other/Exp", "Relu"]
