"""Inputs made by hand: profiler traces, event tables, and calls of the real command."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import numpy as np
import pandas as pd

import analyzer
from analyzer.explain.analysis import Analysis
from analyzer.model.recording.records import EVENTS
from analyzer.tracing.parse.protobuf import Space

ROOT = Path(__file__).parents[1]
INSTALLED = Path(analyzer.__file__).parents[1]
COMMAND = Path(__file__).with_name("cli.py")
SAMPLES = ("accumulation", "cnn", "eager", "infer", "jit", "lstm", "oom", "transformer")
LIMIT_BYTES = 1 << 30


def sample_folder(name: str) -> Path:
    return ROOT / "traces" / name


@cache
def opened_sample(name: str) -> analyzer.Result:
    """Return the result of a sample, opened once for all tests of a worker, which leave it as it is."""
    return analyzer.open_trace(sample_folder(name))


def check_bytes_in_use(result: analyzer.Result) -> pd.DataFrame:
    """Compare bytes in use with TensorFlow's at every event of the allocator; return these events."""
    recording = result.recording
    own = recording.events[recording.events["allocator"] == recording.allocator]
    ours = result.analysis.line.allocated[1:][own.index.to_numpy()]
    assert np.array_equal(ours, own["in_use_bytes"].to_numpy())
    highest = np.maximum.accumulate(ours)
    assert np.array_equal(highest, own["peak_in_use_bytes"].to_numpy())
    return own


def with_recording(analysis: Analysis, **fields: Any) -> Analysis:
    """Return the analysis with other values of the recording's fields."""
    return replace(analysis, recording=replace(analysis.recording, **fields))


def sample_trace(name: str) -> Path:
    return sample_folder(name) / "plugins" / "profile" / "run" / "host.xplane.pb.gz"


def raw_name(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogatepass")


class TraceBuilder:
    """Writes a profiler trace event by event, and keeps the allocator's books for it.

    Times are in nanoseconds. Sizes are those of a chunk; requests may be given apart.
    """

    def __init__(self) -> None:
        self.space = Space()
        self._planes: dict[str, Any] = {}
        self._lines: dict[tuple[str, int], Any] = {}
        self._ids: dict[tuple[str, str, bytes], int] = {}
        self._live: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._in_use: dict[bytes, int] = {}
        self._peak: dict[bytes, int] = {}

    def _plane(self, name: str) -> Any:
        if name not in self._planes:
            self._planes[name] = self.space.planes.add(name=raw_name(name))
        return self._planes[name]

    def line(
        self, thread: int = 1, plane: str = "/host:CPU", timestamp_ns: int = 0
    ) -> Any:
        key = (plane, thread)
        if key not in self._lines:
            self._lines[key] = self._plane(plane).lines.add(
                id=thread, timestamp_ns=timestamp_ns
            )
        return self._lines[key]

    def _id(self, table: str, plane: str, name: str | bytes) -> int:
        key = (table, plane, raw_name(name))
        if key not in self._ids:
            self._ids[key] = len(self._ids) + 1
            entry = getattr(self._plane(plane), table).add(key=self._ids[key])
            entry.value.id, entry.value.name = self._ids[key], raw_name(name)
        return self._ids[key]

    def event(
        self,
        name: str | bytes,
        time_ns: int,
        *,
        duration_ns: int = 0,
        thread: int = 1,
        plane: str = "/host:CPU",
        **stats: Any,
    ) -> Any:
        """Add any event; a text becomes a reference, as TensorFlow writes it."""
        line = self.line(thread, plane)
        event = line.events.add(
            metadata_id=self._id("event_metadata", plane, name),
            offset_ps=(time_ns - line.timestamp_ns) * 1000,
            duration_ps=duration_ns * 1000,
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=self._id("stat_metadata", plane, key))
            if isinstance(value, str | bytes):
                stat.ref_value = self._id("stat_metadata", plane, value)
            elif isinstance(value, float):
                stat.double_value = value
            else:
                stat.int64_value = value
        return event

    def allocate(
        self,
        time_ns: int,
        address: int,
        size: int,
        *,
        requested: int | None = None,
        op: str | bytes = "op",
        allocator: str | bytes = "GPU_0_bfc",
        shape: str = "",
        data_type: int = 0,
        region: str = "output",
        run_id: int = 0,
        thread: int = 1,
        plane: str = "/host:CPU",
    ) -> TraceBuilder:
        request = size if requested is None else requested
        self._live[raw_name(allocator), address] = size, request
        self._memory(
            "MemoryAllocation",
            time_ns,
            thread,
            plane,
            allocator,
            size,
            requested_bytes=request,
            allocation_bytes=size,
            addr=address,
            id=run_id,
            data_type=data_type,
            **({"tf_op": op} if op else {}),
            **({"region_type": region} if region else {}),
            **({"shape": shape} if shape else {}),
        )
        return self

    def free(
        self,
        time_ns: int,
        address: int,
        *,
        size: int | None = None,
        op: str = "",
        allocator: str | bytes = "GPU_0_bfc",
        thread: int = 1,
        plane: str = "/host:CPU",
    ) -> TraceBuilder:
        known, request = self._live.pop((raw_name(allocator), address), (0, 0))
        freed = known if size is None else size
        self._memory(
            "MemoryDeallocation",
            time_ns,
            thread,
            plane,
            allocator,
            -freed,
            requested_bytes=request if size is None else freed,
            allocation_bytes=freed,
            addr=address,
            **({"tf_op": op} if op else {}),
        )
        return self

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
        key = raw_name(allocator)
        self._in_use[key] = self._in_use.get(key, 0) + change
        self._peak[key] = max(self._peak.get(key, 0), self._in_use[key])
        self.event(
            kind,
            time_ns,
            thread=thread,
            plane=plane,
            allocator_name=allocator,
            bytes_allocated=self._in_use[key],
            bytes_available=LIMIT_BYTES - self._in_use[key],
            fragmentation=0.0,
            peak_bytes_in_use=self._peak[key],
            **stats,
        )

    def step(
        self, start_ns: int, end_ns: int, number: int = 0, *, thread: int = 1
    ) -> TraceBuilder:
        self.event(
            "train",
            start_ns,
            duration_ns=end_ns - start_ns,
            thread=thread,
            step_num=number,
            _r=1,
        )
        return self

    def run(
        self, op: str | bytes, start_ns: int, end_ns: int, *, thread: int = 1
    ) -> TraceBuilder:
        """Add the executor's event of one run of an op."""
        self.event(op, start_ns, duration_ns=end_ns - start_ns, thread=thread)
        return self

    def bytes(self) -> bytes:
        return self.space.SerializeToString()

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path


def small_trace(**first: Any) -> TraceBuilder:
    """Two buffers in each of two steps; ``first`` are arguments of the first allocation."""
    trace = TraceBuilder().step(100, 200, 0).step(300, 400, 1)
    for start in (100, 300):
        trace.allocate(start + 10, 0x1000, 512, requested=500, **first)
        trace.allocate(start + 20, 0x2000, 256, requested=4, op="b")
        trace.free(start + 30, 0x2000)
        trace.free(start + 40, 0x1000)
    return trace


def events_of(
    *rows: tuple[int, int, int], allocator: str = "GPU_0_bfc"
) -> pd.DataFrame:
    """Return an event table from ``(kind, address, size)``, one picosecond apart."""
    table = pd.DataFrame(
        {
            "time_ps": range(len(rows)),
            "kind": [row[0] for row in rows],
            "address": [row[1] for row in rows],
            "requested_bytes": [row[2] for row in rows],
            "allocated_bytes": [row[2] for row in rows],
            "allocator": allocator,
            "op": [f"op{index}" for index in range(len(rows))],
        }
    )
    for name, dtype in EVENTS.items():
        if name not in table:
            table[name] = "" if dtype == "category" else 0
    return table.astype(EVENTS)[list(EVENTS)]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What standard error has beside the files that were written."""
        return complaints(self.err)


def complaints(err: str) -> str:
    """Return what was said on standard error but for the files that were written."""
    return "".join(
        line for line in err.splitlines(True) if not line.startswith("Wrote ")
    )


def analyze(*arguments: str | os.PathLike[str], stdout: IO[str] | None = None) -> Ended:
    """Run the command in this process, as its console script does."""
    from analyzer.cli import run

    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["analyze", *map(os.fspath, arguments)]),
        contextlib.redirect_stdout(stdout or out),
        contextlib.redirect_stderr(err),
    ):
        code = run()
    return Ended(code, out.getvalue(), err.getvalue())


def refusal(*arguments: str | os.PathLike[str]) -> str:
    """Return the one line of a command that cannot be carried out."""
    ended = analyze(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1), ended.err
    return ended.err


def run_python(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    given: str = "",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a process that imports the package under test."""
    return subprocess.run(
        [sys.executable, *map(os.fspath, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(INSTALLED), **environment},
        input=given,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        check=False,
    )


def analyze_in_child(
    *arguments: str | os.PathLike[str], cwd: Path, code: int = 0, **environment: str
) -> Ended:
    """Run the command, which ends with ``code``, in a process of its own."""
    done = run_python(COMMAND, *arguments, cwd=cwd, **environment)
    assert done.returncode == code, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def listing(folder: Path) -> set[str]:
    """Return every path in ``folder``, hidden ones too, but no bytecode caches."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def wait_until(is_so: Callable[[], object], limit_s: float = 120.0) -> bool:
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        if is_so():
            return True
        time.sleep(0.02)
    return False


class PageTags(HTMLParser):
    """The tags and the text of a page, as a browser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse_page(page: str) -> PageTags:
    tags = PageTags()
    tags.feed(page)
    return tags
