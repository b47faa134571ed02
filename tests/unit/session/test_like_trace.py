"""Figures of a trace that calibrate an estimate."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import TraceBuilder

from analyzer.model.contract.capture_request import LikeNote, MeasuredConvolution
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.errors import InputError
from analyzer.session.target_graph import read_like
from analyzer.simulate.predict.predicted_device import find_measured

MIB = 1 << 20


def trace(path: Path) -> Path:
    """A convolution with a layout copy and a workspace of 10 MiB."""
    trace = TraceBuilder().step(0, 1000)
    names = {"op": "net/conv/Conv2D", "run_id": 3, "data_type": 1}
    trace.run("net/conv/Conv2D:Conv2D", 5, 100)
    trace.allocate(10, 0x100000, 8 * 16 * 64 * 4, shape="[8,16,8,8]", **names)
    trace.allocate(
        11, 0x200000, 16 * 3 * 9 * 4, shape="[16,3,3,3]", region="temp", **names
    )
    trace.allocate(
        12,
        0x300000,
        10 * MIB,
        shape=f"[{10 * MIB}]",
        region="temp",
        **{**names, "data_type": 4},
    )
    for time, address in ((20, 0x300000), (21, 0x200000), (500, 0x100000)):
        trace.free(time, address)
    return trace.write(path / "host.xplane.pb")


def test_limit_and_workspaces_of_a_trace(tmp_path: Path) -> None:
    like = read_like(trace(tmp_path), "t4")
    assert like.card == "t4"
    assert like.memory_limit_bytes is not None
    assert like.batch_size == 8
    assert like.is_op_by_op
    (found,) = like.convolutions
    assert (found.kind, found.shape, found.workspace_bytes) == (
        "forward",
        (8, 16, 8, 8),
        10 * MIB,
    )


def test_a_trace_without_a_known_card_needs_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no card of the catalogue"):
        read_like(trace(tmp_path))


def convolution(name: str, kind: str, *shape: int, mib: int) -> MeasuredConvolution:
    return MeasuredConvolution(
        op=name, kind=kind, shape=shape, workspace_bytes=mib * MIB
    )


def op(name: str, kind: str, *shape: int) -> Op:
    return Op(name, kind, outputs=(TensorSpec("float32", shape),))


def test_convolutions_match_by_kind_and_shape_at_another_batch() -> None:
    # GIVEN a trace of another version of TensorFlow, with other names and another layout
    like = LikeNote(
        trace="logs",
        card="t4",
        batch_size=8,
        convolutions=(
            convolution("model/conv2d_1/Relu", "forward", 8, 16, 32, 32, mib=10),
            convolution("model/conv2d_2/Relu", "forward", 8, 16, 32, 32, mib=30),
            convolution("gradient_tape/conv", "filter", 3, 3, 16, 16, mib=5),
            convolution("gradient_tape/conv_1", "filter", 3, 3, 16, 16, mib=7),
        ),
    )
    ops = (
        op("net/conv_4/convolution", "Conv2D", 16, 32, 32, 16),
        op("net/conv_5/Relu", "_FusedConv2D", 16, 32, 32, 16),
        op("gradients/net/conv_4", "Conv2DBackpropFilter", 3, 3, 16, 16),
        op("net/conv_6/Relu", "_FusedConv2D", 16, 32, 32, 64),
    )
    # WHEN the batch size is twice that of the trace
    sizes = find_measured(ops, like, 16)
    # THEN workspaces are scaled, and a convolution that could be several has none
    assert sizes == {"net/conv_4/convolution": 20 * MIB, "net/conv_5/Relu": 60 * MIB}
