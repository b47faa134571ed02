"""Traces of JAX: buffers of compiled modules."""

import gzip
from pathlib import Path

from builders import TraceBuilder

import analyzer
from analyzer.tracing.parse.buffer_plan import read_plan

PLAN = Path(__file__).parents[1] / "predict" / "notes" / "jit" / "plan.hlo.pb.gz"


def jax_trace(*, with_module: bool) -> TraceBuilder:
    """Two runs of a compiled step, as JAX writes them: requests without an op."""
    content = gzip.decompress(PLAN.read_bytes())
    trace = TraceBuilder()
    trace.event("Execute", 0, hlo_module="jit_step")
    if with_module:
        plane = trace.space.planes.add(name=b"/host:metadata")
        entry = plane.event_metadata.add(key=1)
        entry.value.name = b"jit_step(7)"
        module = type(plane.event_metadata[0].value).FromString(
            entry.value.SerializeToString() + _stat(content)
        )
        entry.value.CopyFrom(module)

    sizes = [region.size_bytes for region in read_plan(content)]
    for run in range(2):
        start = 1000 * run
        for number, size in enumerate(sizes):
            chunk = max(-(-size // 256) * 256, 256)
            trace.allocate(
                start + number,
                1 << (20 + number),
                chunk,
                requested=size,
                op="",
                region="",
            )

        for number in range(len(sizes)):
            trace.free(start + 500 + number, 1 << (20 + number))

    return trace


def _stat(content: bytes) -> bytes:
    """Return the field of an event's statistic with bytes (``XEventMetadata.stats``)."""

    def varint(value: int) -> bytes:
        low = bytes([value & 127 | (128 if value > 127 else 0)])
        return low + (varint(value >> 7) if value > 127 else b"")

    stat = b"\x32" + varint(len(content)) + content
    return b"\x2a" + varint(len(stat)) + stat


def test_buffers_of_a_module_have_its_names(tmp_path: Path) -> None:
    # GIVEN a trace with the module of the step
    path = jax_trace(with_module=True).write(tmp_path / "host.xplane.pb")
    # WHEN it is opened
    result = analyzer.open_trace(path)
    rows = result.recording.allocations
    # THEN every request belongs to the module, and its temporaries are divided into values with names
    whole = rows[rows["part_of"].isna()]
    assert (whole["op"] == "jit_step(7)").all()
    parts = rows[rows["part_of"].notna() & (rows["instruction"].astype(str) != "")]
    assert len(parts) > 10
    assert {"activation", "temporary"} <= set(parts["category"].astype(str))
    assert (parts["layer"].astype(str) != "").mean() > 0.5


def test_a_trace_without_its_modules_says_so(tmp_path: Path) -> None:
    path = jax_trace(with_module=False).write(tmp_path / "host.xplane.pb")
    report = analyzer.open_trace(path).report
    assert [line for line in report.warnings if "no HLO modules" in line]


def test_an_unreadable_module_is_counted(tmp_path: Path) -> None:
    trace = jax_trace(with_module=False)
    plane = trace.space.planes.add(name=b"/host:metadata")
    value = plane.event_metadata.add(key=1).value
    value.CopyFrom(type(value).FromString(_stat(b"\xff\xff damaged")))
    report = analyzer.open_trace(trace.write(tmp_path / "host.xplane.pb")).report
    assert any(
        "1 HLO modules of the trace cannot be read" in line for line in report.warnings
    )
