"""A compiled step on a card that is not there: by the card's own compiler, else by the CPU's plan."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import analyze_in_child

import analyzer
from analyzer.capture.targets.target_spec import parse_target
from analyzer.cards import find_gpu
from analyzer.cards.xla_compiler import has_compiler
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import CompilerUnavailable
from analyzer.session.target_results import estimate_target
from analyzer.simulate.compiler import compile_child
from analyzer.tracing.parse.run_folder import read_run
from analyzer.tracing.xla.buffer_plan import build_plan

pytestmark = pytest.mark.tf
TARGETS = Path(__file__).parents[1] / "targets"


def books_balance(document: dict[str, Any]) -> None:
    peak = document["peak"]["requested_bytes"]
    assert sum(document["categories_at_peak"].values()) == peak
    doubt = document["uncertainty"]
    assert doubt["low_bytes"] <= peak <= doubt["high_bytes"]
    allocated = document["peak"]["allocated_bytes"]
    assert doubt["allocated_low_bytes"] <= allocated <= doubt["allocated_high_bytes"]


def test_without_the_compiler_the_cpus_plan_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same whether the extra is missing from the start or fails once the step is noted."""

    def missing() -> None:
        raise CompilerUnavailable("There is no compiler.", hint="pip install it.")

    monkeypatch.setattr(compile_child, "find_compiler", missing)
    spec = parse_target(f"{TARGETS / 'gpu_steps.py'}:cnn")
    options = CaptureOptions(batch_size=16, device="gpu", gpu="a100-80gb")
    result = estimate_target(spec, options, tmp_path / "run")
    books_balance(result.document)
    because = " ".join(result.document["uncertainty"]["because"])
    assert "up to twice too high" in because
    assert "pip install it." in because
    assert result.document["device"]["name"] == find_gpu("a100-80gb").name
    assert result.document["step"]["jit"] is True
    (one,) = read_run(tmp_path / "run" / "run.json").compiled
    assert one.hlo is not None
    temporaries = build_plan(one.hlo, platform=one.platform).temp_bytes
    assert result.document["peak"]["requested_bytes"] > temporaries
    again = analyzer.open_trace(tmp_path / "run")
    assert again.document["peak"] == result.document["peak"]
    assert again.document["uncertainty"] == result.document["uncertainty"]


@pytest.mark.skipif(not has_compiler(), reason="the extra xla-gpu is not installed")
def test_the_cards_own_plan_is_taken_and_kept(tmp_path: Path) -> None:
    shutil.copy(TARGETS / "gpu_steps.py", tmp_path)
    ended = analyze_in_child(
        "estimate", "gpu_steps.py:cnn", "--gpu", "a100-80gb", "--batch-size", "16",
        "--one-product", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    books_balance(document)
    assert document["versions"]["xla_compiler"].startswith("jax-cuda12-pjrt")
    assert not any("CPU's" in sentence for sentence in document["uncertainty"]["because"])
    assert {"card.json", "card-0-triton.plan.gz", "module.hlo.pb.gz"} <= {
        file.name for file in (tmp_path / "run").iterdir()
    }
    assert not (tmp_path / "run" / "card-0-cublas.plan.gz").exists()
    assert not list((tmp_path / "run").glob(".xla*"))
    again = analyzer.open_trace(tmp_path / "run")  # needs no compiler
    assert again.document["peak"] == document["peak"]
