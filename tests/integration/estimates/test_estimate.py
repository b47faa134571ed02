"""An estimate against a trace of the same step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import analyze_in_child

import analyzer
from analyzer.model.recording.records import Kind

pytestmark = pytest.mark.tf
TARGETS = Path(__file__).parents[1] / "targets"


class Pairs:
    """Estimates and traces each step once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, tuple[analyzer.Result, analyzer.Result]] = {}

    def get(
        self, name: str, *options: str, **environment: str
    ) -> tuple[analyzer.Result, analyzer.Result]:
        if name not in self.known:
            for command in ("estimate", "trace"):
                # A step comes with arguments of its own.
                batch = (
                    []
                    if name in ("step", "reading", "arrays")
                    else ["--batch-size", "8"]
                )
                ended = analyze_in_child(
                    command, f"predictable.py:{name}", "--out", f"{name}-{command}",
                    *batch, "--inter-op-threads", "1", *options, cwd=self.folder, **environment,
                )  # fmt: skip
                assert ended.code == 0, ended.err
            self.known[name] = (
                analyzer.open_trace(self.folder / f"{name}-estimate"),
                analyzer.open_trace(self.folder / f"{name}-trace"),
            )
        return self.known[name]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    folder = tmp_path_factory.mktemp("estimates")
    shutil.copy(TARGETS / "predictable.py", folder)
    return Pairs(folder)


@pytest.mark.parametrize(
    "name",
    [
        "step",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("convolutions", "accumulating")
        ),
    ],
)
def test_an_estimate_and_a_trace_agree(pairs: Pairs, name: str) -> None:
    """One run is one of many orders, and some peak outside the range of the orders drawn."""
    estimate, trace = pairs.get(name)
    assert estimate.recording.kind is Kind.ESTIMATE
    predicted, measured = estimate.document, trace.document
    stated = predicted["uncertainty"]
    assert stated["because"]
    assert (
        stated["low_bytes"]
        <= predicted["peak"]["requested_bytes"]
        <= stated["high_bytes"]
    )
    allocated = predicted["peak"]["allocated_bytes"]
    assert stated["allocated_low_bytes"] <= allocated <= stated["allocated_high_bytes"]
    # In which chunks a small network's variables lie differs from run to run.
    for kind, tolerance in (("requested_bytes", 0.005), ("allocated_bytes", 0.2)):
        expected = pytest.approx(measured["resident"][kind], rel=tolerance)
        assert predicted["resident"][kind] == expected
    peak = measured["peak"]["requested_bytes"]
    for category in ("parameter", "optimizer_state", "input"):
        other = predicted["categories_at_peak"][category]
        size = measured["categories_at_peak"][category]
        assert other == pytest.approx(size, abs=0.02 * peak), category


@pytest.mark.slow
def test_the_batches_and_the_buffers_of_an_iterator_count(pairs: Pairs) -> None:
    estimate, trace = pairs.get("reading")
    predicted, measured = estimate.document, trace.document
    stated, resident = predicted["uncertainty"], measured["resident"]["requested_bytes"]
    assert stated["unsized"] == 0
    assert (
        stated["low_bytes"]
        <= measured["peak"]["requested_bytes"]
        <= stated["high_bytes"]
    )
    assert predicted["resident"]["requested_bytes"] == pytest.approx(resident, rel=0.02)


@pytest.mark.slow
def test_a_numpy_array_among_the_inputs_leaves_the_others_their_shapes(
    pairs: Pairs,
) -> None:
    """Nadam makes a variable from a constant of the graph in which the slots are made."""
    estimate, trace = pairs.get("arrays")
    predicted, measured = estimate.document, trace.document
    stated, peak = predicted["uncertainty"], measured["peak"]["requested_bytes"]
    # The arrays that begin at a multiple of 64 bytes are not copied.
    arrays_bytes = 4 * (1000 * 16 + 30 + 1000 * 64)
    assert peak <= stated["high_bytes"]
    assert stated["low_bytes"] <= peak
    assert predicted["peak"]["requested_bytes"] - peak <= arrays_bytes + 0.01 * peak
    assert predicted["peak"]["requested_bytes"] - stated["low_bytes"] >= arrays_bytes
    assert any("NumPy" in reason for reason in stated["because"])


@pytest.mark.slow
def test_inputs_in_a_dictionary_count_once(pairs: Pairs) -> None:
    estimate, trace = pairs.get("dictionary", "--no-jit")
    predicted, measured = estimate.document, trace.document
    resident = measured["resident"]["requested_bytes"]
    assert predicted["resident"]["requested_bytes"] == pytest.approx(
        resident, rel=0.005
    )
    inputs = 8 * (64 * 64 * 3 * 4 + 32 * 4)
    for result in (predicted, measured):
        assert result["categories_at_peak"]["input"] == pytest.approx(inputs, rel=0.01)
    # With one thread the executor's order is the one that needs least.
    peak = measured["peak"]["requested_bytes"]
    assert 0.85 * predicted["uncertainty"]["low_bytes"] <= peak
    assert peak <= predicted["uncertainty"]["high_bytes"]


def test_a_step_without_freedom_is_predicted_as_it_is(pairs: Pairs) -> None:
    estimate, trace = pairs.get("inference", "--mode", "infer")
    predicted, measured = estimate.document, trace.document
    peak = measured["peak"]["requested_bytes"]
    assert predicted["peak"]["requested_bytes"] == pytest.approx(peak, rel=0.005)
    allocated = measured["peak"]["allocated_bytes"]
    assert predicted["peak"]["allocated_bytes"] == pytest.approx(allocated, rel=0.01)
    for category, size in measured["categories_at_peak"].items():
        other = predicted["categories_at_peak"][category]
        assert other == pytest.approx(size, abs=0.02 * peak), category


def test_an_estimate_is_opened_again_and_compared(pairs: Pairs) -> None:
    estimate, trace = pairs.get("step")
    folder = pairs.folder / "step-estimate"
    again = analyzer.estimate(folder)
    assert again.document["peak"] == estimate.document["peak"]
    assert again.allocations.equals(estimate.allocations)
    assert (folder / "report.html").is_file()
    assert not (folder / "plugins").exists()
    assert analyzer.diff(trace, estimate).document


def test_no_weight_is_given_its_bytes(pairs: Pairs) -> None:
    """More than a hundred gigabytes of parameters are estimated on any machine."""
    ended = analyze_in_child(
        "estimate", "predictable.py:enormous", "--batch-size", "1", "--json", "-",
        "--out", "enormous", cwd=pairs.folder,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["categories_at_peak"]["parameter"] > 100 << 30
    assert document["peak"]["allocated_bytes"] >= document["peak"]["requested_bytes"]


@pytest.mark.slow  # its sentence: test_corpus.py
def test_an_eager_step_is_refused_with_the_reason(pairs: Pairs) -> None:
    ended = analyze_in_child(
        "estimate", "predictable.py:eager", "--out", "eager", cwd=pairs.folder
    )
    assert ended.code == 2
    assert "eagerly" in ended.err
    assert not (pairs.folder / "eager").exists()


@pytest.mark.slow  # as test_no_weight_is_given_its_bytes
def test_a_model_built_by_a_call_needs_no_weights(pairs: Pairs) -> None:
    ended = analyze_in_child(
        "estimate",
        "predictable.py:called",
        "--out",
        "called",
        "--json",
        "-",
        cwd=pairs.folder,
    )
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert not any("allocated in full" in note for note in document["notes"])
    assert document["categories_at_peak"]["parameter"] == 4 * (
        50 * 300 + 300 + 300 * 7 + 7
    )


@pytest.mark.slow
def test_a_step_of_few_bytes_with_a_large_number(tmp_path: Path) -> None:
    target = f"{TARGETS / 'corpus.py'}:large_constant"
    ended = analyze_in_child(
        "estimate", target, "--json", "step.json", "--no-save", cwd=tmp_path
    )
    assert ended.code == 0, ended.err
    assert (
        0
        < json.loads((tmp_path / "step.json").read_bytes())["peak"]["requested_bytes"]
        < 4096
    )
