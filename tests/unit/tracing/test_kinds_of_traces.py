"""Traces of other devices, programs and windows than a whole TensorFlow step on a card."""

import gzip
from itertools import product
from pathlib import Path

import pytest
from builders import TraceBuilder, small_trace

from analyzer.model.errors import TraceError
from analyzer.model.recording.records import XLA_TRIAL_ROLE, Recording
from analyzer.report.answer import answer_lines
from analyzer.session.target_results import open_trace
from analyzer.tracing.measure.measured_recording import open_measured
from analyzer.tracing.parse.run_folder import find_run
from analyzer.tracing.parse.xplane import read_trace
from analyzer.tracing.xla.xla_dumps import describe_assignment

KIB = 1 << 10
GIB = 1 << 30
HALF, FLOAT = 19, 1  # TensorFlow's numbers of element types


def measured(trace: TraceBuilder, folder: Path) -> Recording:
    return open_measured(trace.write(folder / "host.xplane.pb"))


def test_a_tpu_has_heap_stack_and_limit_and_no_damages(tmp_path: Path) -> None:
    # GIVEN two cores, each with a heap of 2 GiB that is freed without its size, and a stack of 3 GiB
    trace = TraceBuilder()
    changes = (
        (10, "MemoryAllocation", 2 * GIB, 0),
        (20, "MemoryDeallocation", 0, 0),
        (30, "MemoryAllocation", GIB, 3 * GIB),
    )
    for core, (time, kind, in_use, reserved) in product(range(2), changes):
        size = in_use if kind == "MemoryAllocation" else 0
        trace.event(
            kind,
            time,
            plane="/device:TPU:0",
            device_ordinal=core,
            addr=64,
            requested_bytes=size,
            allocation_bytes=size,
            bytes_allocated=in_use,
            bytes_reserved=reserved,
            bytes_available=8 * GIB - in_use - reserved,
            peak_bytes_in_use=2 * GIB,
        )
    # WHEN it is measured
    result = open_trace(trace.write(tmp_path / "host.xplane.pb"))
    recording = result.analysis.recording
    # THEN the report has the parts and no need, the stack has its role, and a note states the parts
    peak, number, action = answer_lines(result.report)
    assert peak.startswith("Peak 4.00 GiB of heap and stack")
    assert number == "Heap and stack take 4.00 GiB of 8.00 GiB of TPU:0."
    assert "Nothing to change" not in action
    assert recording.device.kind == "tpu"
    assert recording.integrity.damages == ()
    table = recording.allocations
    assert set(table["allocator"]) == {"TPU:0", "TPU:1"}
    stack, _ = table[table["op"] == "stack"].to_dict("records")
    assert (stack["requested_bytes"], stack["category"]) == (3 * GIB, "temporary")
    assert stack["role"] == "stack that XLA reserves for its programs"
    note, _ = recording.notes
    assert "no replay" in note
    assert all(size in note for size in ("2.00 GiB", "3.00 GiB", "8.00 GiB"))


def test_a_peak_between_the_runs_of_a_function_counts(tmp_path: Path) -> None:
    # GIVEN two runs of a function, and more bytes between them than in either
    trace = TraceBuilder()
    for start, run_id in ((100, 7), (300, 8)):
        for number in range(4):
            time, address = start + 10 * number, (start + number) << 20
            trace.allocate(time, address, 64 * KIB, op="net/Relu", run_id=run_id)
            trace.free(time + 5, address)
    trace.allocate(200, 1 << 40, 96 * KIB, op="Add")
    trace.free(210, 1 << 40)
    # WHEN it is explained THEN the peak is that of the whole trace
    report = open_trace(trace.write(tmp_path / "host.xplane.pb")).report
    assert report.peak.requested_bytes == 96 * KIB


def test_a_window_that_cuts_a_step_says_so(tmp_path: Path) -> None:
    # GIVEN the forward pass of a function whose results are alive when the trace ends
    trace = TraceBuilder()
    for number, op in enumerate(("net/Pad", "net/Relu", "net/MaxPool")):
        trace.allocate(
            10 + number,
            (number + 1) << 20,
            64 * KIB,
            op=op,
            shape="[128,128]",
            data_type=1,
            run_id=7,
        )
    trace.free(20, 1 << 20)
    # WHEN it is measured THEN no role states who reads them
    recording = measured(trace, tmp_path)
    assert any("ends inside a step" in warning for warning in recording.warnings)
    table = recording.allocations
    left = table[(table["category"] == "activation") & (table["dies"] > 3)]
    assert len(left)
    assert "read in the forward pass only" not in set(left["role"])


def mixed_step() -> TraceBuilder:
    """A dense layer with its weight of 64 x 64 floats in half precision, and Adam."""
    trace = TraceBuilder()
    trace._in_use[b"GPU_0_bfc"] = 100 * KIB

    def add(time: int, op: str, size: int, data_type: int) -> None:
        trace.allocate(
            time,
            time << 20,
            size,
            op=op,
            shape="[64,64]",
            data_type=data_type,
            run_id=7,
        )

    def launch(time: int, annotation: str) -> None:
        trace.event("kernel", time, correlation_id=time)
        trace.event(
            "kernel",
            time,
            plane="/device:GPU:0",
            correlation_id=time,
            annotation=annotation,
        )

    tape = "gradient_tape/net/dense/MatMul"
    add(10, "net/dense/MatMul/Cast", 8 * KIB, HALF)
    launch(11, "net/dense/MatMul/Cast:Cast")
    add(12, "net/dense/MatMul", 8 * KIB, HALF)
    launch(13, "net/dense/MatMul:MatMul")
    add(20, f"{tape}/MatMul_1", 8 * KIB, HALF)
    launch(21, f"{tape}/MatMul_1:MatMul")
    trace.free(22, 10 << 20).free(23, 12 << 20)
    add(30, f"{tape}/Cast/Cast", 16 * KIB, FLOAT)
    launch(31, f"{tape}/Cast/Cast:Cast")
    trace.free(32, 20 << 20)
    launch(40, "Adam/Adam/update/ResourceApplyAdam:ResourceApplyAdam")
    trace.free(41, 30 << 20)

    return trace


def test_mixed_precision_has_each_variable_once(tmp_path: Path) -> None:
    table = measured(mixed_step(), tmp_path).allocations
    old = table[table["born"] < 0]
    sizes = old.groupby("category", observed=True)["requested_bytes"].sum()
    # The gradient in half precision is of the same variable, which has two slots.
    assert sizes["parameter"] == 16 * KIB
    assert sizes["optimizer_state"] == 32 * KIB
    (cast,) = table[table["op"] == "net/dense/MatMul/Cast"].to_dict("records")
    assert cast["category"] == "temporary"
    layers = set(table.loc[table["op"].astype(str).str.contains("dense"), "layer"])
    assert layers == {"net/dense"}


def test_a_logdir_with_runs_names_them(tmp_path: Path) -> None:
    for run in ("2024_01", "2024_02"):
        folder = tmp_path / "plugins/profile" / run
        folder.mkdir(parents=True)
        mixed_step().write(folder / "host.xplane.pb")
    (warning, *_) = open_measured(tmp_path).warnings
    assert "the newest, 2024_02" in warning
    assert "--run" in warning
    assert find_run(tmp_path, "2024_01").name == "2024_01"
    with pytest.raises(TraceError, match=r"no run '2023'. It has 2024_01, 2024_02"):
        find_run(tmp_path, "2023")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("host.trace.json.gz", gzip.compress(b"{}", mtime=0)),
        ("host.kernel_stats.pb", b"\xff"),
    ],
)
def test_a_file_without_events_names_the_trace_beside_it(
    name: str, content: bytes, tmp_path: Path
) -> None:
    trace = mixed_step().write(tmp_path / "host.xplane.pb")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TraceError, match=f"Open {trace}"):
        read_trace(path)


ASSIGNMENT = """BufferAssignment:
allocation 0: size 1048576, output shape is |f32[512,512]|, maybe-live-out:
 value: <26 wrapped_add @0> (size=1048576,offset=0): f32[512,512]{1,0}
allocation 1: size 524288, parameter 0, shape |f32[256,512]| at ShapeIndex {}:
 value: <16 arg0.1 @0> (size=524288,offset=0): f32[256,512]{1,0}
allocation 2: size 2097152, preallocated-temp:
 value: <18 matmul.2 @0> (size=524288,offset=0): f32[256,512]{1,0}

Total bytes used: 3670016 (3.50MiB)
"""
REPORT = """Total bytes used: 3670016 (3.50MiB)

allocation 2: size 2.00MiB, preallocated-temp:
allocation 0: size 1.00MiB, output shape is |f32[512,512]|, maybe-live-out:
allocation 1: size 512.0KiB, parameter 0, shape |f32[256,512]| at ShapeIndex {}:
"""


@pytest.mark.parametrize(
    ("name", "text", "largest"),
    [
        ("a.buffer-assignment.txt", ASSIGNMENT, "wrapped_add"),
        ("a.memory-usage-report.txt", REPORT, "allocation 2"),
    ],
)
def test_a_dump_of_xla_has_its_total_kinds_and_largest_buffers(
    name: str, text: str, largest: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    first, _, row, *_ = describe_assignment(path)
    parts = "temporaries 2.00 MiB, results 1.00 MiB, parameters 512.0 KiB"
    assert first == f"XLA assigns 3.50 MiB to this module: {parts}."
    assert largest in row


def test_trials_of_xla_are_no_part_of_a_step(tmp_path: Path) -> None:
    # GIVEN a first step in which the passes of XLA's compiler request 1 MiB
    trace = small_trace().run("HLO Transforms:a_step_7", 121, 129)
    trace.allocate(122, 1 << 30, 1 << 20).free(123, 1 << 30)
    result = open_trace(trace.write(tmp_path / "host.xplane.pb"))
    # WHEN it is explained THEN the trial has its name
    rows = result.analysis.rows.set_index("role")
    assert rows.at[XLA_TRIAL_ROLE, "category"] == "workspace"
    assert result.report.peak_ever.phase.endswith(", in XLA's trials of algorithms")
