"""Steps on simulated cards, and estimates compared with them."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from builders import run_python
from simulated_cards import NEEDS_CARDS, NEEDS_NCCL_BY_NAME
from workbench import Workbench

from analyzer.cards.catalogue import find_gpu, memory_limit
from analyzer.model.recording.attribution import PACKED_ROLE
from analyzer.model.units import format_bytes
from analyzer.session.opening import open_result
from analyzer.simulated_card.card_environment import SHORT_BYTES

COVERAGE = Path(__file__).parents[2] / "benchmarks" / "traces" / "coverage.py"

pytestmark = NEEDS_CARDS


def run(
    workbench: Workbench,
    command: str,
    name: str,
    *options: str,
    gpu: str = "t4",
    code: int = 0,
) -> dict[str, Any]:
    """Return the document of a run on a card, or of an estimate without a run."""
    words = (command, f"gpu_steps.py:{name}", "--gpu", gpu, *options)
    variables = {"TF_MEMORY_ANALYZER_STATIC": "1"} if command == "estimate" else {}
    ran = workbench.run(*words, code=code, **variables)
    return {**ran.document, "printed": ran.ended.out, "folder": ran.folder}


def test_a_step_runs_on_the_card_and_an_estimate_agrees(workbench: Workbench) -> None:
    options = (
        "--no-jit",
        "--batch-size",
        "8",
        "--inter-op-threads",
        "1",
    )  # so that runs repeat
    ran = run(workbench, "trace", "cnn", *options)
    assert "simulated for Tesla T4" in ran["printed"]
    assert sum(ran["categories_at_peak"].values()) == ran["peak"]["requested_bytes"]
    assert ran["printed"].startswith("FITS Tesla T4: needs ")
    bounds, requested = ran["uncertainty"], ran["peak"]["requested_bytes"]
    assert bounds["low_bytes"] <= requested <= bounds["high_bytes"]
    said = run(workbench, "estimate", "cnn", *options)
    assert said["peak"]["requested_bytes"] == pytest.approx(requested, rel=0.02)


@pytest.mark.slow
def test_a_step_runs_under_the_limit_that_it_is_said_to_need(
    workbench: Workbench,
) -> None:
    options = ("--no-jit", "--batch-size", "8", "--inter-op-threads", "1")
    verdict = run(workbench, "trace", "cnn", *options, "--force")["verdict"]
    need = verdict["need_high_bytes"] - verdict["need"]["beside_pool"]["bytes"]
    # The order of ops varies, and with it the range of another process.
    needs = round(1.1 * need / (1 << 20))
    under = run(workbench, "trace", "cnn", *options, "--limit", f"{needs}MiB")
    assert (under["fits"], under["verdict"]["limit_of"]) == (True, "user")
    assert under["verdict"]["need_bytes"] <= needs << 20


@pytest.mark.slow
def test_the_gradient_of_a_table_is_finite_so_that_the_scaled_loss_applies_it(
    workbench: Workbench,
) -> None:
    ran = run(workbench, "trace", "scaled_table", "--no-jit", "--batch-size", "16")
    recording = open_result(ran["folder"]).recording
    last = recording.allocations[
        recording.allocations["step"] == recording.steps[-1].index
    ]
    assert last["op"].astype(str).str.contains("adam/").any()


@pytest.mark.slow
def test_an_eager_convolution_has_its_workspace(workbench: Workbench) -> None:
    ran = run(workbench, "trace", "called")
    rows = [one for one in ran["tensors_at_peak"] if one["dtype"] == "uint8"]
    assert {one["category"] for one in rows} == {"workspace"}
    assert not ran["step"]["jit"]


def test_a_limit_is_tensorflows_own_and_the_end_its_own_message(
    workbench: Workbench,
) -> None:
    tight = ("--no-jit", "--batch-size", "8", "--limit", "20MiB")
    ran = run(workbench, "trace", "cnn", *tight, code=5)
    assert ran["device"]["memory_limit_bytes"] == 20 << 20
    assert "RESOURCE_EXHAUSTED" in (ran["folder"] / "capture.log").read_text()
    assert ran["verdict"]["need_bytes"] > 20 << 20
    assert ran["fits"] is False
    assert ran["printed"].startswith("DOES NOT FIT the given limit on Tesla T4: needs ")
    assert "MiB of 20.00 MiB in use. The figures are of a run" in str(ran["warnings"])
    # The step that ran with more room has gradients and an optimizer.
    assert ran["error"] is None
    assert ran["categories_at_peak"]["optimizer_state"]


@pytest.mark.slow
def test_a_compiled_step_that_does_not_fit_is_told_what_was_in_use_then(
    workbench: Workbench,
) -> None:
    """Not what the algorithms held that were tried while it was compiled."""
    ran = run(workbench, "trace", "deep", "--limit", "350MiB", code=5)
    in_use = told_in_use(ran["folder"])
    said = f"failed with {format_bytes(in_use)} of 350.0 MiB in use"
    assert said in " ".join(ran["printed"].split())


def test_requests_that_xlas_trials_repeat_are_refused_soon_and_named(
    workbench: Workbench,
) -> None:
    """TensorFlow waits 10 s for each of them, and for the first on a simulated card 1 s."""
    ran = run(workbench, "trace", "broadcast_kernel", "--batch-size", "512", code=5)
    log = (ran["folder"] / "capture.log").read_text("utf-8", "replace")
    assert log.count("trying to allocate 32.00GiB") > 10
    assert "a request for 32.00 GiB failed" in ran["printed"]


def test_a_large_card_has_a_short_pool_until_a_step_needs_more(
    workbench: Workbench,
) -> None:
    limit = memory_limit(find_gpu("rtx-3090")).bytes
    small = run(workbench, "trace", "one_gib", gpu="rtx-3090")
    large = run(workbench, "trace", "twenty_gib", gpu="rtx-3090")
    spare = [
        json.loads((ran["folder"] / "run.json").read_text())["simulated_card"][
            "spare_bytes"
        ]
        for ran in (small, large)
    ]
    assert spare[0][0] >= limit - SHORT_BYTES
    assert not spare[1]
    assert large["peak"]["requested_bytes"] >= 20 << 30
    for ran in (small, large):
        assert ran["device"]["memory_limit_bytes"] == limit
        assert ran["peak"]["pool_bytes"] == limit
        assert ran["fits"]


def test_a_compiled_step_takes_its_tokens_on_the_card(workbench: Workbench) -> None:
    ran = run(workbench, "trace", "compiled_tokens", "--batch-size", "64", "--growth")
    assert ran["peak"]["allocated_bytes"] <= ran["peak"]["pool_bytes"] < 1 << 30
    assert "should have computed are read at gpu_steps.py" in str(ran["notes"])
    tokens = 1 << 20  # 64 x 4096 integers
    assert ran["categories_at_peak"]["input"] == pytest.approx(tokens, rel=0.01)


def told_in_use(run: Path) -> int:
    """Return the bytes of the chunks in use in the last list that TensorFlow's allocator wrote."""
    dump = (
        (run / "capture.log")
        .read_text("utf-8", "replace")
        .rpartition("BFCAllocator dump for")[2]
    )
    sizes = re.findall(r"\] InUse at \w+ of size (\d+)", dump.partition("] Stats:")[0])
    assert sizes
    return sum(map(int, sizes))


@NEEDS_NCCL_BY_NAME
def test_both_cards_are_shown_and_the_all_reduces_buffers_named(
    workbench: Workbench,
) -> None:
    options = ("--gpu", "2xt4", "--no-jit")
    estimate = workbench.run("estimate", "gpu_steps.py:mirrored", *options)
    ran = estimate.document
    assert ran["simulated_card"]["cards"] == ["t4", "t4"]
    assert [use["card"] for use in ran["cards"]] == ["t4", "t4"]
    shown, other = sorted(ran["cards"], key=lambda use: not use["is_shown"])
    assert shown["allocated_bytes"] == ran["peak"]["allocated_bytes"]
    parameters = ran["categories_at_peak"]["parameter"]
    assert parameters < min(shown["requested_bytes"], other["requested_bytes"])
    page = (estimate.folder / "report.html").read_text()
    assert "2 cards allocate at most " in page
    table = estimate.result.recording.allocations
    packed = table[table["role"] == PACKED_ROLE]
    assert set(packed["allocator"].astype(str)) == {"GPU_0_bfc", "GPU_1_bfc"}
    assert set(packed["requested_bytes"]) == {4 * (64 * 256 + 256 + 256 * 10 + 10)}
    second = table[table["allocator"] == "GPU_1_bfc"]
    weights = second[second["category"] == "parameter"]
    assert "sequential/dense/kernel/replica_1" in set(weights["variable"].astype(str))
    assert weights["requested_bytes"].sum() == 4 * (64 * 256 + 256 + 256 * 10 + 10)


@pytest.mark.slow
def test_a_reserve_space_is_what_is_assumed(workbench: Workbench) -> None:
    options = ("--no-jit", "--batch-size", "8", "--assume", "recurrent-reserve=12")
    ran = run(workbench, "trace", "recurrent", *options)
    reserve = 12 * 8 * 32 * 48 * 4  # numbers, rows, steps, units, bytes
    reserve += 8 * 4  # the length of each row
    sizes = [row["requested_bytes"] for row in ran["tensors_at_peak"]]
    assert reserve in sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    "bare",
    [False, True],  # without the graph, without any note
)
@pytest.mark.parametrize("name", ["cnn", "transformer", "recurrent"])
def test_a_trace_keeps_its_categories_without_the_capture(
    workbench: Workbench, name: str, bare: bool
) -> None:
    # GIVEN a step on the card, of which the graph or the whole note is lost
    options = ("--no-jit", "--batch-size", "8")
    ran = run(workbench, "trace", name, *options)["folder"]
    # WHEN the trace is explained THEN the graph that is derived gives nearly the same categories
    compare = runpy.run_path(str(COVERAGE))["compare"]
    assert compare(ran, bare=bare) >= (0.9 if bare else 0.95)


@pytest.mark.slow
def test_a_live_model_runs_on_the_card_in_a_process_of_its_own(
    workbench: Workbench,
) -> None:
    code = (
        "import json, analyzer, gpu_steps\n"
        "result = analyzer.trace(gpu_steps.cnn(), gpu='t4', batch_size=8, jit=False, out='live')\n"
        "print(json.dumps([result.document['kind'], result.document['fits'], result.peak_bytes]))\n"
    )
    done = run_python("-c", code, cwd=workbench.folder)
    assert done.returncode == 0, done.stderr[-3000:]
    kind, fits, peak = json.loads(done.stdout.splitlines()[-1])
    assert (kind, fits) == ("simulated_card", True)
    named = open_result(workbench.folder / "live").report
    assert peak == named.peak.requested_bytes > 0
    assert named.device.kind == "gpu"
