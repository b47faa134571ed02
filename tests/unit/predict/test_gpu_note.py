"""A step noted for a T4 (``notes/gpu``): books, totals, does it fit. No GPU was asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from builders import analyze

from analyzer.cards import find_gpu, memory_limit, process_overhead
from analyzer.explain.replay_settings import WhatIf
from analyzer.model.contract.report_file import Need
from analyzer.model.contract.report_json import plain_report
from analyzer.model.ranges import BoundedBytes, Range
from analyzer.report.document import build_document
from analyzer.session.opening import analyse_step, explain
from analyzer.simulate.predict.predicted_recording import predict_note, target_of
from analyzer.simulate.predict.prediction import predict
from analyzer.simulate.predict.stated_range import find_workspaces
from analyzer.tracing.parse.run_folder import read_run

NOTE = Path(__file__).parent / "notes" / "gpu" / "run.json"


def document_of(note, **what_if):
    return plain_report(
        build_document(explain(predict_note(note), WhatIf(**what_if), search=True))
    )


@pytest.fixture(scope="module")
def note():
    return read_run(NOTE)


@pytest.fixture(scope="module")
def document(note):
    return document_of(note)


@pytest.fixture
def folder(tmp_path):
    for name in ("run.json", "graph.json.gz"):
        shutil.copy(NOTE.parent / name, tmp_path)
    return tmp_path


def test_the_books_balance(document, note):
    peak, categories = document["peak"], document["categories_at_peak"]
    assert (
        sum(categories.values()) == peak["requested_bytes"] <= peak["allocated_bytes"]
    )
    sizes = {"parameter": 0, "optimizer_state": 0}
    for row in note.variables:
        size = 4
        for axis in row.shape:
            size *= axis
        if row.dtype == "int64":
            size *= 2
        sizes[row.category] = sizes.get(row.category, 0) + size
    assert categories["parameter"] == sizes["parameter"]
    assert categories["optimizer_state"] == sizes["optimizer_state"]
    inputs = 16 * 64 * 64 * 3 * 4  # the labels are int32 and stay on the host
    assert categories["input"] == inputs
    resident = document["resident"]["requested_bytes"]
    expected = (
        sizes["parameter"] + sizes["optimizer_state"] + inputs + categories["constant"]
    )
    assert resident == pytest.approx(expected, abs=200)  # metrics and counters
    assert document["unmodelled"] == []


def test_the_device_is_the_card_with_its_limit(document):
    card = find_gpu("t4")
    limit = memory_limit(card).bytes
    assert document["device"] == {
        "kind": "gpu", "name": card.name, "memory_limit_bytes": limit,
    }  # fmt: skip
    assert document["allocator"] == "GPU_0_bfc"
    # TensorFlow takes the whole limit at once; what is outside the pool is told apart.
    assert document["peak"]["pool_bytes"] == limit
    assert document["peak"]["process_bytes"] == limit + process_overhead(card).bytes
    assert document["peak"]["process_bytes"] < card.memory_bytes


def test_it_fits_and_says_by_how_much(document):
    verdict = document["verdict"]
    assert document["fits"] is True
    assert verdict["margin_bytes"] == verdict["limit_bytes"] - verdict["need_bytes"] > 0
    assert (
        verdict["need_low_bytes"] <= verdict["need_bytes"] <= verdict["need_high_bytes"]
    )
    assert verdict["need_bytes"] >= document["peak"]["allocated_bytes"]


def test_what_is_uncertain_is_said_and_one_sided(document):
    stated = document["uncertainty"]
    peak = document["peak"]["requested_bytes"]
    assert stated["low_bytes"] <= peak <= stated["high_bytes"]
    steady = stated["workspace"]["steady"]
    assert (
        stated["low_bytes"]
        <= steady["low"]
        <= peak
        <= steady["high"]
        <= stated["high_bytes"]
    )
    words = " ".join(stated["because"])
    assert "cuDNN" in words
    assert "No GPU was used" in words


def test_the_peaks_over_the_likely_algorithms_contain_the_shown_one(note):
    target = target_of(note)
    prediction = predict(note, target.device, target.options)
    schedule, found = prediction.middle, find_workspaces(prediction, 1 << 40)
    assert found.steady.low <= schedule.peak_bytes <= found.steady.high
    calls = [plan.library for plan in prediction.prepared.plans if plan.library]
    live = schedule.live_bytes
    assert found.steady.high <= int(live.max()) + max(one.most_bytes for one in calls)
    assert found.first_step.high >= int(live[: schedule.steps[0].last + 2].max())


def shrunk(folder, card, **sizes):
    """Return the note with another card, and with tensors made larger where asked."""
    raw = json.loads((folder / "run.json").read_text())
    raw["device"] = {
        "kind": "gpu",
        "name": find_gpu(card).name,
        "id": find_gpu(card).id,
    }
    (folder / "run.json").write_text(json.dumps(raw))
    return read_run(folder / "run.json")


def test_another_card_has_another_limit(folder, document):
    other = document_of(shrunk(folder, "h100"))
    assert other["verdict"]["limit_bytes"] > document["verdict"]["limit_bytes"]
    assert other["peak"]["process_bytes"] > document["peak"]["process_bytes"]
    # The graph was optimised for a T4. Only the workspaces of convolutions are larger on an H100.
    workspace = other["categories_at_peak"]["workspace"]
    assert (
        other["peak"]["requested_bytes"] - workspace
        <= document["peak"]["requested_bytes"]
    )


def test_a_limit_that_is_too_small_ends_with_3(folder):
    assert analyze("estimate", folder, "--quiet").code == 0
    done = analyze("estimate", folder, "--limit", "30MiB")
    assert done.code == 3
    assert "DOES NOT FIT the given limit on Tesla T4" in done.out


def test_growth_takes_less_than_the_whole_limit(folder):
    done = analyze("estimate", folder, "--growth", "--json", "-")
    replayed = json.loads(done.out)["what_if"]
    assert replayed["fits"]
    assert replayed["peak_pool_bytes"] < memory_limit(find_gpu("t4")).bytes / 10


@pytest.mark.parametrize(
    "what_if",
    [
        WhatIf(memory_limit_bytes=90 << 20),
        WhatIf(growth=True),
        WhatIf(fragmentation_fraction=0.01),
    ],
)
def test_chunks_lie_as_they_do_under_what_was_asked(note, folder, what_if):
    """One region is as large as the limit, a pool that grows has several: other chunks fit best."""
    told = plain_report(build_document(analyse_step(note, folder, what_if=what_if)))
    replayed, limit = told["what_if"], told["device"]["memory_limit_bytes"]
    card_bytes = memory_limit(find_gpu("t4")).bytes
    assert (
        limit
        == replayed["memory_limit_bytes"]
        == (what_if.memory_limit_bytes or card_bytes)
    )
    assert told["peak_ever"]["allocated_bytes"] == replayed["peak_allocated_bytes"]
    pool = told["peak"]["pool_bytes"]
    assert pool == replayed["peak_pool_bytes"]
    assert pool == limit or what_if.growth
    assert told["fits"] is not False
    low, high = (
        told["uncertainty"][f"allocated_{end}_bytes"] for end in ("low", "high")
    )
    assert low <= told["peak"]["allocated_bytes"] <= high


@pytest.mark.parametrize(
    ("needed", "fits"), [(1 << 30, True), (14 << 30, "may not"), (15 << 30, False)]
)
def test_near_the_limit_the_answer_is_may_not(note, monkeypatch, needed, fits):
    """The T4's limit is 13.1 to 13.8 GiB."""
    from analyzer.explain import verdict as fit

    size = BoundedBytes(needed, Range(needed - (1 << 29), needed))
    need = Need(steady_step=size, allocator=BoundedBytes.exactly(0))
    monkeypatch.setattr(fit, "find_need", lambda *_: (need, need))
    assert document_of(note)["fits"] == fits


def test_a_card_that_is_not_known_is_refused(tmp_path):
    done = analyze(
        "estimate", "keras:VGG16", "--gpu", "z9000", "--out", tmp_path / "out"
    )
    assert done.code == 2
    assert "z9000" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [("--device", "cpu", "--gpu", "t4"), ("--device", "gpu"), ("--device", "tpu")],
)
def test_options_that_contradict_are_refused(tmp_path, options):
    done = analyze("estimate", "keras:VGG16", *options, "--out", tmp_path / "out")
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_folder_is_for_the_card_that_it_was_noted_for(folder):
    assert analyze("estimate", folder, "--gpu", "Tesla T4", "--quiet").code == 0
    for options in (("--gpu", "h100"), ("--device", "cpu")):
        done = analyze("estimate", folder, *options)
        assert done.code == 2
        assert "t4" in done.err
        assert done.err.count("\n") == 1
