"""What a run leaves in its folder is what is replaced with it, and nothing else is."""

from __future__ import annotations

from fnmatch import fnmatch

from analyzer.capture.process import capture_worker as worker
from analyzer.capture.process.run_folders import LOG_FILE, PARTS
from analyzer.model.contract.report.writing import DIGESTS_FILE, REPORT_HTML, REPORT_JSON
from analyzer.tracing.parse.logdir import RUN_FILE


def test_every_file_of_a_run_is_a_part() -> None:
    files = [RUN_FILE, LOG_FILE, REPORT_HTML, REPORT_JSON, DIGESTS_FILE]
    files += [worker.GRAPH_FILE, "plan.hlo.pb.gz"]
    files += ["plugins"]
    for name in files:
        assert any(fnmatch(name, pattern) for pattern in PARTS), name
    for name in ("model.keras", "notes.json", "train.py", "report.csv", "data.gz"):
        assert not any(fnmatch(name, pattern) for pattern in PARTS), name
