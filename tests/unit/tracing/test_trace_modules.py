"""Traces of JAX and of TPUs: buffers of compiled modules, and devices without an allocator's name."""

import gzip
from pathlib import Path
from typing import Any

from builders import TraceBuilder, raw_name

import analyzer
from analyzer.tracing.parse.buffer_plan import read_plan
from analyzer.tracing.parse.xplane import read_trace

PLAN = Path(__file__).parents[1] / "predict" / "notes" / "jit" / "plan.hlo.pb.gz"
GIB = 1 << 30


class TpuTrace(TraceBuilder):
    """A trace whose memory events name the device's number and reserve memory for its programs."""

    reserved: dict[str, int]

    def _memory(
        self,
        kind: str,
        time_ns: int,
        thread: int,
        plane: str,
        allocator: str | bytes,
        change: int,
        **stats: Any,
    ) -> None:
        core = str(allocator)
        in_use = self._in_use.get(raw_name(core), 2 * GIB) + change
        self._in_use[raw_name(core)] = in_use
        self.event(
            kind,
            time_ns,
            thread=thread,
            plane=plane,
            device_ordinal=int(core),
            bytes_reserved=self.reserved[core],
            bytes_allocated=in_use,
            bytes_available=16 * GIB - in_use - self.reserved[core],
            peak_bytes_in_use=12 * GIB,
            **stats,
        )


def tpu_trace() -> TpuTrace:
    """Two cores use the same addresses, and reserve 1 GiB while a program runs."""
    trace = TpuTrace()
    trace.reserved = {"0": 0, "1": 0}
    trace.line(plane="/device:TPU:0")

    for time in range(0, 300, 100):
        for number, core in enumerate("01"):
            trace.allocate(
                time + number, 0x1000, 4 * GIB, op="", region="", allocator=core
            )
            trace.reserved[core] = GIB
            trace.allocate(
                time + 10 + number, 0x2000, 3 * GIB, op="", region="", allocator=core
            )

        for number, core in enumerate("01"):
            trace.reserved[core] = 0
            trace.free(time + 20 + number, 0x1000, allocator=core)
            trace.free(time + 30 + number, 0x2000, allocator=core)

    return trace


def test_each_core_of_a_tpu_is_a_device(tmp_path: Path) -> None:
    # GIVEN a complete trace of two cores
    path = tpu_trace().write(tmp_path / "host.xplane.pb")
    # WHEN it is opened
    report = analyzer.open_trace(path).report
    # THEN it is not damaged, and the peak is that of the counters of one core, with reserved memory
    assert not report.integrity.is_damaged
    assert report.integrity.events_disagreeing == 0
    assert report.peak.allocated_bytes == (2 + 4 + 3 + 1) * GIB
    assert set(read_trace(path).events["allocator"].unique()) == {"TPU:0", "TPU:1"}
    # AND what does not apply to a TPU is stated
    assert any("no replay" in note for note in report.notes)


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
