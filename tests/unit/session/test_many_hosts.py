"""Hosts of one run: the same report wherever they are read, whatever dies on the way."""

import json
import os
import signal
from pathlib import Path

import pytest
from builders import SAMPLES, TraceBuilder, analyze, sample_trace

from analyzer.model.errors import InputError, TraceError
from analyzer.report.render.terminal import to_terminal
from analyzer.report.report_sections import report_document
from analyzer.session.opening import open_hosts, read_host, read_hosts
from analyzer.session.target_results import open_trace
from analyzer.session.work_engine import run_all
from analyzer.tracing.parse.run_folder import find_traces


def logdir(folder: Path, hosts: int) -> Path:
    """Return a run of copies of the samples, host after host."""
    run = folder / "plugins" / "profile" / "run"
    run.mkdir(parents=True)
    for number in range(hosts):
        sample = sample_trace(SAMPLES[number % len(SAMPLES)])
        (run / f"host{number:03}.xplane.pb.gz").symlink_to(sample)
    return folder


def one_device(path: Path, size: int) -> Path:
    trace = TraceBuilder().allocate(10, 0x100, size).free(20, 0x100)
    trace.write(path)
    return path


def die_once(asked: tuple[str, str]) -> object:
    """Read a host's trace; the first process that is asked for the marked one dies in the middle."""
    mark = Path(asked[0]).parents[3] / "died"
    if "host001" in asked[0] and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return read_host(asked)


def test_hosts_in_one_report(tmp_path: Path) -> None:
    # GIVEN a run of several samples, one of them cut short
    count = 4
    folder = logdir(tmp_path, count)
    broken = find_traces(folder)[2]
    content = broken.read_bytes()
    broken.unlink()
    broken.write_bytes(content[: len(content) // 2])
    # WHEN it is opened
    result = open_trace(folder)
    hosts = result.report.hosts
    # THEN each host's figure is the one that its own report has, and the damaged one is named
    assert [row.host for row in hosts if row.failed] == ["host002"]
    assert any("host002" in line for line in result.report.warnings)
    assert f"worst of {count - 1} hosts." in result.report.warnings[0]
    for row in hosts[:-1]:
        alone = open_trace(folder, host=row.host, allocator=row.allocator).report.peak
        peaks = (row.requested_bytes, row.allocated_bytes)
        assert peaks == (alone.requested_bytes, alone.allocated_bytes)

    assert hosts[0].allocated_bytes == result.report.peak.allocated_bytes
    assert "host002" in json.dumps(result.document)
    assert to_terminal(report_document(result.report)) is not None
    # AND the command has the same
    out = tmp_path / "out.json"
    assert analyze("trace", folder, "--json", out, "--quiet").code == 0
    assert json.loads(out.read_text())["hosts"] == result.document["hosts"]


def test_no_host_that_reads(tmp_path: Path) -> None:
    run = tmp_path / "plugins" / "profile" / "run"
    run.mkdir(parents=True)
    for name in "ab":
        (run / f"{name}.xplane.pb").write_bytes(b"step 1 loss 0.2\n")
    with pytest.raises(TraceError, match="None of the 2 hosts' traces can be read"):
        open_hosts(tmp_path)


def test_the_device_with_the_most_memory_comes_first(tmp_path: Path) -> None:
    sizes = [1 << 20, 3 << 20, 2 << 20]
    files = [
        one_device(tmp_path / f"h{n}.xplane.pb", size) for n, size in enumerate(sizes)
    ]
    rows = read_hosts(files, "", "", is_parallel=False)
    assert [row.host for row in rows] == ["h1", "h2", "h0"]


def test_processes_and_dask_give_the_same_and_a_death_loses_nothing(
    tmp_path: Path,
) -> None:
    folder = logdir(tmp_path, 2)
    asked = [(str(file), "") for file in find_traces(folder)]
    alone = dict(run_all(read_host, asked))
    assert dict(run_all(read_host, asked, workers=2)) == alone

    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    ) as cluster:
        found = run_all(die_once, asked, cluster.scheduler_address)
        assert dict(found) == alone
        assert (folder / "died").exists()


def test_no_scheduler_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("analyzer.session.work_engine._CONNECT_TIMEOUT_S", 1)
    folder = logdir(tmp_path, 2)
    with pytest.raises(
        InputError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"
    ):
        open_hosts(folder, scheduler="tcp://127.0.0.1:9")
