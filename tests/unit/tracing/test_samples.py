"""The sample traces against what TensorFlow wrote into them and against the variables' own bytes."""

import json
import math
from functools import cache

import pytest
from builders import (
    SAMPLES,
    check_bytes_in_use,
    opened_sample,
    sample_folder,
    with_recording,
)

from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.model.contract.fields import Category
from analyzer.model.units import format_bytes

STEADY = [name for name in SAMPLES if name != "oom"]
ITEM_BYTES = {"float32": 4, "int32": 4, "int64": 8, "uint32": 4, "bool": 1}


@cache
def variables(name: str) -> list[dict]:
    return json.loads((sample_folder(name) / "run.json").read_text())["variables"]


def bytes_of(rows: list[dict]) -> int:
    return sum(ITEM_BYTES[row["dtype"]] * math.prod(row["shape"]) for row in rows)


@pytest.mark.parametrize("name", SAMPLES)
def test_bytes_in_use_equal_tensorflows_at_every_event(name: str) -> None:
    own = check_bytes_in_use(opened_sample(name))
    limit = opened_sample(name).recording.device.memory_limit_bytes
    assert (own["in_use_bytes"] + own["available_bytes"] == limit).all()


@pytest.mark.parametrize("name", SAMPLES)
def test_the_peak_and_its_instant_equal_tensorflows(name: str) -> None:
    # GIVEN the bytes in use that TensorFlow wrote in the steady step
    document, recording = opened_sample(name).document, opened_sample(name).recording
    step = recording.steps[-1]
    inside = recording.events.iloc[step.first : step.last + 1]
    first = inside["in_use_bytes"].idxmax()
    # THEN ours are the same, at the first event that reaches them
    assert document["peak"]["allocated_bytes"] == inside["in_use_bytes"].max()
    assert document["peak"]["allocated_instant"] == first
    assert document["peak"]["step"] == step.index
    ever = document["peak_ever"]["allocated_bytes"]
    assert ever == recording.events["peak_in_use_bytes"].max()
    assert (
        document["steps"][-1]["allocated_bytes"] == document["peak"]["allocated_bytes"]
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_categories_add_up_to_the_peak(name: str) -> None:
    document = opened_sample(name).document
    total = document["peak"]["requested_bytes"]
    categories = document["categories_at_peak"]
    assert list(categories) == [category.value for category in Category]
    assert sum(categories.values()) == total
    assert sum(row["requested_bytes"] for row in document["tensors_at_peak"]) == total
    assert sum(row["total_bytes"] for row in document["layers"]) == total
    assert categories["unattributed"] <= 0.01 * total


@pytest.mark.parametrize("name", STEADY)
def test_parameters_and_optimizer_state_equal_the_variables(name: str) -> None:
    # GIVEN the variables that the capture listed with dtype and shape
    listed = variables(name)
    parameters = [row for row in listed if row["category"] == "parameter"]
    state = [row for row in listed if row["category"] == "optimizer_state"]
    # THEN the peak holds exactly their bytes, each variable once
    categories = opened_sample(name).document["categories_at_peak"]
    assert categories["parameter"] == bytes_of(parameters) > 0
    assert categories["optimizer_state"] == bytes_of(state)
    alive = opened_sample(name).analysis.alive
    held = alive[alive["category"].isin(["parameter", "optimizer_state"])]
    assert sorted(held["variable"]) == sorted(row["path"] for row in parameters + state)
    sizes = {row["path"]: bytes_of([row]) for row in parameters + state}
    assert dict(zip(held["variable"], held["requested_bytes"], strict=True)) == sizes


def test_accumulators_are_gradients() -> None:
    result = opened_sample("accumulation")
    sums = {
        row["path"]: bytes_of([row])
        for row in variables("accumulation")
        if row["path"].startswith("sum_")
    }
    alive = result.analysis.alive
    held = alive[alive["role"] == "gradient accumulator"]
    assert set(held["category"]) == {"gradient"}
    assert dict(zip(held["variable"], held["requested_bytes"], strict=True)) == sums
    assert len(sums) == 4
    assert result.document["categories_at_peak"]["gradient"] >= sum(sums.values())


@pytest.mark.parametrize("name", STEADY)
def test_nothing_is_lost_or_doubled(name: str) -> None:
    # GIVEN a trace from the start of the process
    recording = opened_sample(name).recording
    table = recording.allocations
    # THEN every event is the birth or the death of one buffer, and none was there before
    assert (table["born"] >= 0).all()
    assert len(table) == (recording.events["kind"] > 0).sum()
    assert (table["dies"] < len(recording.events)).sum() == (
        recording.events["kind"] < 0
    ).sum()
    assert (table["dies"] > table["born"]).all()
    assert (table["allocated_bytes"] >= table["requested_bytes"]).all()
    assert recording.warnings == ()


@pytest.mark.parametrize(
    ("name", "size"), [("cnn", 16), ("infer", 16), ("jit", 64), ("lstm", 8)]
)
def test_inputs_have_the_bytes_of_what_is_fed(name: str, size: int) -> None:
    document = opened_sample(name).document
    run = json.loads((sample_folder(name) / "run.json").read_text())
    assert document["step"]["batch_size"] == size
    assert document["categories_at_peak"]["input"] == bytes_of(run["inputs"])


def test_layers_and_lines_of_code_are_known() -> None:
    document = opened_sample("cnn").document
    layers = {row["layer"] for row in document["layers"]}
    assert {"cnn/conv2d", "cnn/batch_normalization", "cnn/dense"} <= layers
    conv = next(row for row in document["ops"] if row["type"] == "_MklNativeConv2D")
    assert conv["layer"].startswith("cnn/conv2d")
    sources = {row["source"] for row in opened_sample("accumulation").document["ops"]}
    assert any(source.startswith("traces/models.py:") for source in sources)


def test_the_step_that_ran_out_of_memory() -> None:
    result = opened_sample("oom")
    assert int(result.exit_code) == 5
    finding = next(
        row for row in result.document["findings"] if row["id"] == "out-of-memory"
    )
    assert finding["severity"] == "high"
    asked = 16 * 64 * 64 * 64 * 4
    assert finding["title"] == "Out of memory: a request for 16.00 MiB failed"
    in_use = result.document["peak_ever"]["allocated_bytes"]
    limit = result.document["device"]["memory_limit_bytes"]
    assert limit == 48 * 2**20
    assert asked > limit - in_use
    assert f"{format_bytes(limit - in_use)} were free" in finding["detail"]
    assert finding["evidence"]
    # a wait at the end of the step, when its tensors are freed, is of no request
    events = result.recording.events.copy()
    events.iloc[-1, events.columns.get_loc("time_ps")] += 10**13
    late = with_recording(result.analysis, events=events)
    assert failure_of(late) == result.report.failure
