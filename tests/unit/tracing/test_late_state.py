"""Variables of Keras' optimizers in a trace that begins after their creation, without a note."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from builders import TraceBuilder

from analyzer.tracing.measure.measured_recording import open_measured

KIB = 1024
MIB = 1024 * KIB
RUN = 77
GRADIENT = "gradient_tape/net/conv/Conv2D/Conv2DBackpropFilter"
HALF, FLOAT = 19, 1
PLACES = 0x100000


class Step(TraceBuilder):
    """A training step of one convolution, whose variables are older than the trace."""

    def __init__(self, *before: int, size: int = 16 * KIB, dtype: int = FLOAT) -> None:
        super().__init__()
        for number, older in enumerate(before):
            self.allocate(0, PLACES * (100 + number), older)
        del self.line().events[:]
        self.dtype, self.size = dtype, size
        self.event("ExecutorState::Process", 1, duration_ns=900, id=RUN)
        self.request(10, 1, 32 * KIB, "net/conv/Conv2D", "[8,1024]")
        self.request(20, 2, size, GRADIENT, f"[{size // (2 if dtype == HALF else 4)}]")
        self.free(30, PLACES)

    def request(
        self, time: int, place: int, size: int, op: str, shape: str = "", region: str = "output"
    ) -> None:
        self.allocate(time, PLACES * place, size, op=op, shape=shape, region=region,
                      data_type=self.dtype if shape else 0, run_id=RUN)  # fmt: skip

    def end(self) -> None:
        """Free the gradient, and request a result of the step that lives longer."""
        self.request(90, 90, 4, "net/loss", "[]")
        self.free(91, PLACES * 2)


def opened(trace: TraceBuilder, folder: Path) -> pd.DataFrame:
    return open_measured(trace.write(folder / "host.xplane.pb")).recording.allocations


def earlier(table: pd.DataFrame) -> dict[str, int]:
    rows = table[(table["born"] < 0) & (table["allocated_bytes"] > 0)]
    sums: dict[str, int] = (
        rows.groupby("category", observed=True)["allocated_bytes"].sum().to_dict()
    )
    return sums


@pytest.mark.parametrize(
    ("scope", "slots"), [("adam", 2), ("adam_w_1", 2), ("nadam", 2), ("adagrad", 1), ("other", 0)]
)
def test_the_scope_of_kerass_optimizer_implies_the_slots_that_it_changes_in_place(
    scope: str, slots: int, tmp_path: Path
) -> None:
    trace = Step(48 * KIB + 512)
    trace.request(40, 3, 16 * KIB, f"{scope}/Mul")
    trace.free(50, PLACES * 3, op=f"{scope}/Mul")
    trace.end()
    found = earlier(opened(trace, tmp_path))
    assert found.get("optimizer_state", 0) == 16 * KIB * slots
    assert found["parameter"] == 16 * KIB


def test_an_assignment_frees_the_old_value_of_a_momentum(tmp_path: Path) -> None:
    # GIVEN a step whose momentum gets a new buffer
    trace = Step(16 * KIB, 16 * KIB + 256)
    trace.request(40, 3, 16 * KIB, "sgd/Mul", region="")
    # WHEN the assignment frees the old one
    trace.free(50, PLACES * 100, op="sgd/AssignVariableOp")
    trace.end()
    table = opened(trace, tmp_path)
    # THEN both are optimizer state, and the parameter is counted once
    assert earlier(table) == {
        "optimizer_state": 16 * KIB, "parameter": 16 * KIB, "unattributed": 256,
    }  # fmt: skip
    assert table.set_index("op").loc["sgd/Mul", "role"] == "new value of a slot"


def test_a_parameter_that_an_update_copies_is_counted_once(tmp_path: Path) -> None:
    trace = Step(16 * KIB, 32 * KIB)
    trace.request(40, 3, 16 * KIB, "adam/AssignSubVariableOp", region="temp")
    trace.free(50, PLACES * 100)
    trace.end()
    table = opened(trace, tmp_path)
    state = table[table["category"].isin(["parameter", "optimizer_state"])]
    assert state.groupby("category", observed=True)["allocated_bytes"].sum().to_dict() == {
        "optimizer_state": 32 * KIB,
        "parameter": 32 * KIB,  # the old value and the new one
    }


def test_variables_of_mixed_precision_have_the_size_of_the_update(tmp_path: Path) -> None:
    trace = Step(96 * KIB, dtype=HALF)
    trace.request(40, 3, 32 * KIB, "loss_scale_optimizer/adam/Mul")
    trace.free(50, PLACES * 3, op="loss_scale_optimizer/adam/Mul")
    trace.end()
    assert earlier(opened(trace, tmp_path)) == {
        "optimizer_state": 64 * KIB, "parameter": 32 * KIB,
    }  # fmt: skip


def test_a_large_result_without_a_region_is_no_trial(tmp_path: Path) -> None:
    """MLIR's kernels request results like ``RedzoneAllocator`` (``tf_framework_c_interface.cc``)."""
    trace = Step(32 * MIB, size=32 * MIB)
    trace.request(40, 3, 32 * MIB, "sgd/Mul", region="")
    trace.free(50, PLACES * 100, op="sgd/AssignVariableOp")
    trace.end()
    made = opened(trace, tmp_path).set_index("op").loc["sgd/Mul"]
    assert (made["category"], made["role"]) == ("optimizer_state", "new value of a slot")
