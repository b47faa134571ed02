"""Graphs in event files that lie next to a profile."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from builders import TraceBuilder

from analyzer.tracing.measure.measured_recording import open_measured
from analyzer.tracing.sources import graph_join
from analyzer.tracing.sources.graph_join import read_event_ops


def record(content: bytes) -> bytes:
    return struct.pack("<QI", len(content), 0) + content + bytes(4)


def write_events(folder: Path, *records: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.out.tfevents.1.host.1.v2"
    path.write_bytes(b"".join(map(record, records)))

    return path


def graph(*nodes: tuple[str, str, tuple[str, ...]], in_function: bool) -> bytes:
    """Return an event with a graph, whose nodes are in a function's body or at the top."""
    message: Any = graph_join._GraphDef()
    target = message.library.function.add().node_def if in_function else message.node

    for name, op, inputs in nodes:
        target.add(
            name=name.encode(), op=op.encode(), input=[one.encode() for one in inputs]
        )

    return bytes(
        graph_join._Event(graph_def=message.SerializeToString()).SerializeToString()
    )


def test_a_traced_graph_gives_edges_to_a_trace(tmp_path: Path) -> None:
    # GIVEN a profile in a logdir with the event file of the callback
    nodes = (
        ("net/conv/Conv2D", "Conv2D", ("images", "net/conv/kernel")),
        ("net/norm/Norm", "FusedBatchNormV3", ("net/conv/Conv2D:output:0", "^ready")),
        ("net/norm/Sub", "Sub", ("net/norm/Norm:batch_variance:0",)),
    )
    write_events(tmp_path / "train", b"", graph(*nodes, in_function=True))
    profile = tmp_path / "train" / "plugins" / "profile" / "run"
    profile.mkdir(parents=True)
    trace = TraceBuilder().step(0, 1000)

    for number, (name, op, _) in enumerate(nodes):
        start, names = 10 * number, f"StatefulPartitionedCall/{name}"
        trace.run(f"{names}:{op}", start, start + 5)
        trace.allocate(
            start + 1, 0x1000 * (number + 1), 1024, op=names, run_id=5, data_type=1
        )

    for number in range(3):
        trace.free(500 + number, 0x1000 * (number + 1))
    trace.write(profile / "host.xplane.pb")
    # WHEN the logdir is opened
    measured = open_measured(tmp_path)
    # THEN all ops are joined, with the edges of the event file
    assert measured.join is not None
    assert (measured.join.joined, measured.join.tensors) == (3, 3)
    assert measured.structure is not None
    call = "StatefulPartitionedCall/net"
    assert f"{call}/norm/Norm" in measured.structure.consumers[f"{call}/conv/Conv2D:0"]
    assert f"{call}/norm/Sub" in measured.structure.consumers[f"{call}/norm/Norm:2"]
    edge = (f"{call}/conv/Conv2D:0", f"{call}/norm/Norm")
    assert measured.structure.evidence[edge] == "tensorboard"


def test_a_damaged_event_file_gives_no_graph(tmp_path: Path) -> None:
    path = write_events(tmp_path, b"\xff\xff no event")
    assert read_event_ops(path) == ()
    path.write_bytes(
        record(graph(("kept", "Relu", ()), in_function=False)) + b"\x99" * 20
    )
    assert [op.name for op in read_event_ops(path)] == ["kept"]
