"""Real TensorFlow, recorded from process start: every event must be what the simulator does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from workloads import from_events

from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import compare
from analyzer.tracing.parse.xplane import read_trace

RECORDER = Path(__file__).with_name("data") / "record_workload.py"
SECONDS = 180


@pytest.mark.tf
@pytest.mark.parametrize(
    "kind",
    [
        "step",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("eager", "graph", "jit")
        ),
    ],
)
def test_every_event_is_reproduced(kind, tmp_path):
    environment = {
        **os.environ,
        "TF_CPU_ALLOCATOR_USE_BFC": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    environment.pop("TF_CPU_BFC_MEM_LIMIT_IN_MB", None)
    seed = str(int.from_bytes(os.urandom(2), "big"))
    command = [sys.executable, str(RECORDER), kind, seed, str(tmp_path)]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.rglob("*.xplane.pb")
    events = read_trace(path).events
    check, _ = compare(from_events(events), events, BfcOptions.cpu())
    assert check.events == len(events) > 100
    assert check.is_exact, f"seed {seed}: {check}"
