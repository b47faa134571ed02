"""An estimate against a trace of the same step."""

import pytest
from workbench import Workbench

import analyzer
from analyzer.model.recording.records import Kind


class Pairs:
    """The estimate and the trace of a step."""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench

    def get(self, name: str, *options: str) -> tuple[analyzer.Result, analyzer.Result]:
        has_arguments = name in ("step", "reading", "arrays")
        batch = () if has_arguments else ("--batch-size", "8")
        target = (f"predictable.py:{name}", *batch, "--inter-op-threads", "1")
        estimate, trace = (
            self.workbench.run(one, *target, *options).result
            for one in ("estimate", "trace")
        )
        return estimate, trace


@pytest.fixture
def pairs(workbench: Workbench) -> Pairs:
    return Pairs(workbench)


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
    assert (
        stated["low_bytes"]
        <= predicted["peak"]["requested_bytes"]
        <= stated["high_bytes"]
    )
    allocated = predicted["peak"]["allocated_bytes"]
    assert stated["allocated_low_bytes"] <= allocated <= stated["allocated_high_bytes"]
    # In which chunks a small network's variables lie differs from run to run.
    for kind, tolerance in (("requested_bytes", 0.005), ("allocated_bytes", 0.2)):
        # The process has a few constants more.
        expected = pytest.approx(measured["resident"][kind], rel=tolerance, abs=1024)
        assert predicted["resident"][kind] == expected
    peak = measured["peak"]["requested_bytes"]
    for category in ("parameter", "optimizer_state", "input"):
        other = predicted["categories_at_peak"][category]
        size = measured["categories_at_peak"][category]
        assert other == pytest.approx(size, abs=0.02 * peak), category


@pytest.mark.slow
def test_the_batches_of_an_iterator_count(pairs: Pairs) -> None:
    estimate, trace = pairs.get("reading")
    predicted, measured = estimate.document, trace.document
    stated, peak = predicted["uncertainty"], measured["peak"]["requested_bytes"]
    assert stated["unsized"] == 0

    inputs = (one["categories_at_peak"]["input"] for one in (measured, predicted))
    examples = next(inputs) - next(inputs)
    assert examples >= 1900 * 64 * 4, "the shuffle buffer, which an estimate lacks"
    assert stated["low_bytes"] <= peak - examples <= stated["high_bytes"]
    assert "growth-per-step" not in {one["id"] for one in measured["findings"]}


@pytest.mark.slow
def test_a_numpy_array_among_the_inputs_leaves_the_others_their_shapes(
    pairs: Pairs,
) -> None:
    """Nadam makes a variable from a constant of the graph in which the slots are made."""
    estimate, trace = pairs.get("arrays")
    predicted, measured = estimate.document, trace.document
    stated, peak = predicted["uncertainty"], measured["peak"]["requested_bytes"]
    # A matrix pairs the rows of the features.
    assert measured["step"]["batch_size"] == 0
    # The arrays that begin at a multiple of 64 bytes are not copied.
    arrays_bytes = 4 * (1000 * 16 + 30 + 1000 * 64)
    assert peak <= stated["high_bytes"]
    assert stated["low_bytes"] <= peak + arrays_bytes


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
    folder = estimate.folder
    assert folder is not None
    again = analyzer.estimate(folder)
    assert again.document["peak"] == estimate.document["peak"]
    assert again.allocations.equals(estimate.allocations)
    assert (folder / "report.html").is_file()
    assert not (folder / "plugins").exists()
    assert analyzer.diff(trace, estimate).document


def test_no_weight_is_given_its_bytes(workbench: Workbench) -> None:
    """More than a hundred gigabytes of parameters are estimated on any machine."""
    target = ("predictable.py:enormous", "--batch-size", "1")
    document = workbench.run("estimate", *target).document
    assert document["categories_at_peak"]["parameter"] > 100 << 30
    assert document["peak"]["allocated_bytes"] >= document["peak"]["requested_bytes"]


def test_an_eager_step_is_refused_with_the_reason(workbench: Workbench) -> None:
    ran = workbench.run("estimate", "predictable.py:eager", code=2)
    assert "eagerly" in ran.ended.err
    assert not ran.folder.exists()


def test_a_model_built_by_a_call_needs_no_weights(workbench: Workbench) -> None:
    document = workbench.run("estimate", "predictable.py:called").document
    assert not any("allocated in full" in note for note in document["notes"])
    weights = 4 * (50 * 300 + 300 + 300 * 7 + 7)
    assert document["categories_at_peak"]["parameter"] == weights


@pytest.mark.slow
def test_a_step_of_few_bytes_with_a_large_number(workbench: Workbench) -> None:
    document = workbench.run("estimate", "corpus.py:large_constant").document
    assert 0 < document["peak"]["requested_bytes"] < 4096
