"""What findings save is worked out on the timeline, and how much that matters follows from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builders import SAMPLES, sample_folder

from analyzer.explain.all_findings import collect
from analyzer.explain.analysis import FLOOR_BYTES, Analysis, analyse, saved_without, severity_of
from analyzer.explain.questions import peak_owner
from analyzer.explain.questions.peak_owner import (
    find_gradient_copies,
    find_input_copies,
    find_largest,
)
from analyzer.explain.questions.retained_tensors import find_recomputation
from analyzer.explain.questions.step_settings import find_internal_waste, find_state
from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import Basis, Outcome, VerdictFigures
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.contract.watch_note import WatchNote
from analyzer.model.recording.records import Device, Finding, Kind, Recording, Severity, Step
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, conform, empty
from analyzer.session.opening import open_result

MIB = 1 << 20
GIB = 1 << 30
NOTES = Path(__file__).parents[1] / "predict" / "notes"
Row = tuple[int, int, int, Category, str, str]  # bytes, born, dies, category, variable, shape


def analysis_of(*rows: Row, batch: int | None = None, mode: str = "train") -> Analysis:
    """Return the analysis of one step of 100 instants with these buffers."""
    sizes, born, dies, categories, variables, shapes = (
        list(column) for column in zip(*rows, strict=False)
    )
    table = pd.DataFrame(
        {
            **{name: "" for name, column in ALLOCATIONS.items() if column.dtype == "category"},
            "allocator": "a",
            "requested_bytes": sizes,
            "allocated_bytes": sizes,
            "born": born,
            "dies": dies,
            "category": [category.value for category in categories],
            "variable": variables,
            "shape": shapes,
            "layer": "dense",
            "dtype": "float32",
            "op": [f"op{number}" for number in range(len(rows))],
            "run_id": 0,
            "step": 0,
        }
    ).assign(**dict.fromkeys(("address", "born_ps", "dies_ps", "turns_at", "part_of"), pd.NA))
    events = empty(EVENTS).reindex(range(100))
    recording = Recording(
        kind=Kind.ESTIMATE,
        target={},
        device=Device(kind="cpu", name="x"),
        step_config=StepConfig(mode=mode, batch_size=batch, optimizer="SGD"),
        events=events,
        allocations=conform(table, ALLOCATIONS),
        allocator="a",
        steps=(Step(index=0, number=0, first=0, last=99),),
    )
    return analyse(recording)


def buffer(
    size: int, born: int, dies: int, category: Category, variable: str = "", shape: str = ""
) -> Row:
    return size, born, dies, category, variable, shape


@cache
def finding(name: str, id_: str) -> Finding | None:
    found = open_result(sample_folder(name), search=False).findings
    return next((each for each in found if each.id == id_), None)


@pytest.mark.parametrize(
    ("saves", "peak", "severity"),
    [
        (0, 0, Severity.INFO),
        (4 * MIB, GIB, Severity.INFO),
        (20 * MIB, GIB, Severity.LOW),
        (100 * MIB, GIB, Severity.MEDIUM),
        (300 * MIB, GIB, Severity.HIGH),
        (FLOOR_BYTES - 1, 2 * FLOOR_BYTES, Severity.LOW),
    ],
)
def test_severity_is_the_share_of_the_peak_with_a_floor(
    saves: int, peak: int, severity: Severity
) -> None:
    assert severity_of(saves, peak) is severity


@pytest.mark.parametrize(
    ("need", "has_action"), [(20 * MIB, True), (200 * MIB, False), (20 << 10, True)]
)
def test_savings_too_small_to_notice_are_left_out(need: int, has_action: bool) -> None:
    # GIVEN half of the activations of a step save 0.5 MiB, of a tiny one 4 KiB
    size = MIB if need >= MIB else 8 << 10
    rows = [buffer(size // 8, 10 + i, 50 - i, Category.ACTIVATION) for i in range(8)]
    analysis = analysis_of(*rows)
    verdict = VerdictFigures(
        outcome=Outcome.NO_LIMIT, basis=Basis.MEASURED, headline="", need_bytes=need
    )
    # WHEN the memory beside it is small or large
    found = collect(replace(analysis, verdict=verdict)).findings
    # THEN a saving below 1 MiB and 1 % of the need is no action
    ids = [one.id for one in found]
    assert ("retained-activations" in ids) is has_action
    assert ("nothing-to-change" in ids) is not has_action


def test_a_program_below_the_smallest_pool_has_no_action() -> None:
    # GIVEN half of the activations save 4 KiB of 8 KiB, in a step and in a whole program
    rows = [buffer(1 << 10, 10 + i, 50 - i, Category.ACTIVATION) for i in range(8)]
    step = analysis_of(*rows)
    program = replace(step, recording=replace(step.recording, watch=WatchNote()))
    # WHEN no change makes the program's pool smaller, THEN it has no action
    assert "nothing-to-change" not in [one.id for one in collect(step).findings]
    nothing = next(one for one in collect(program).findings if one.id == "nothing-to-change")
    assert nothing.title.endswith("and a growing pool takes 2 MiB at least")


def test_a_layers_sums_of_the_inputs_size_are_no_copies_of_it() -> None:
    # GIVEN an input and a sum of its size, in a batch normalization and outside all layers
    analysis = analysis_of(
        buffer(MIB, 10, 50, Category.INPUT), buffer(MIB, 20, 50, Category.ACTIVATION)
    )
    found = {}
    for layer in ("bn", ""):
        table = analysis.recording.allocations.assign(
            op=[peak_owner._LOADER, "AddV2"], layer=["", layer]
        )
        recording = replace(analysis.recording, allocations=conform(table, ALLOCATIONS))
        rows = find_input_copies(analyse(recording), WatchNote())
        found[layer] = [one.id for one in rows]
    # THEN only the one outside is a copy
    assert found == {"bn": [], "": ["input-copies"]}


def test_a_second_peak_nearly_as_high_leaves_little_to_save() -> None:
    # GIVEN a large buffer at the peak, and another instant that is nearly as high
    analysis = analysis_of(
        buffer(10 * MIB, 10, 20, Category.TEMPORARY), buffer(9 * MIB, 50, 60, Category.TEMPORARY)
    )
    # WHEN the first is gone, THEN the second one is the peak
    assert saved_without(analysis, [10 * MIB], [10], [20]) == MIB
    # only while it is gone
    assert saved_without(analysis, [10 * MIB], [10], [19]) == 0
    assert saved_without(analysis, [], [], []) == 0


def test_activations_that_wait_can_be_computed_again() -> None:
    # GIVEN eight layers whose activations wait for a backward pass in reverse order
    layers = [buffer(MIB, 10 + i, 50 - i, Category.ACTIVATION) for i in range(8)]
    found = find_recomputation(analysis_of(*layers))
    # THEN of stretches of 3, 3 and 2 the first ones stay, and one stretch is there: 4 of 8
    assert (found.segments, found.saves_bytes) == (3, 4 * MIB)
    assert found.half_saves_bytes == 4 * MIB


def test_no_cut_helps_where_one_activation_is_in_use_at_the_peak() -> None:
    found = find_recomputation(analysis_of(buffer(MIB, 10, 50, Category.ACTIVATION)))
    assert (found.saves_bytes, found.half_saves_bytes) == (0, MIB // 2)


def test_what_activations_save_is_no_more_than_they_hold() -> None:
    for folder in (*map(sample_folder, SAMPLES), NOTES / "gpu", NOTES / "jit"):
        analysis = open_result(folder, search=False).analysis
        found = find_recomputation(analysis)
        assert 0 <= found.half_saves_bytes <= max(analysis.categories["activation"], 0)
        assert 0 <= found.saves_bytes <= max(analysis.categories["activation"], 0)


def test_the_activations_of_the_transformer_come_first() -> None:
    kept = finding("transformer", "retained-activations")
    assert kept is not None
    assert kept.severity is Severity.HIGH
    assert kept.saves_bytes
    assert open_result(sample_folder("transformer"), search=False).findings[0] == kept


def test_little_is_not_of_medium_severity() -> None:
    kept = finding("accumulation", "retained-activations")  # 16 KiB, 2 % of the peak
    assert kept is not None
    assert kept.severity is Severity.LOW


def test_gradients_of_micro_batches_are_counted() -> None:
    found = finding("accumulation", "gradient-copies")
    assert found is not None
    assert found.severity is Severity.HIGH
    assert found.title.startswith("4 gradients of sequential/dense/kernel are alive together")
    kernels = [row for row in found.evidence if row["of"] == "sequential/dense/kernel"]
    assert len(kernels) == 4
    # one of four stays
    assert found.saves_bytes >= 3 * 64 * 256 * 4
    for name in ("cnn", "transformer", "lstm", "eager"):
        assert finding(name, "gradient-copies") is None, name


def test_variables_that_share_a_shape_have_a_gradient_each() -> None:
    # GIVEN two kernels of one layer and shape, and their gradients
    shape = "[512,512]"
    kernels = [buffer(MIB, 0, 100, Category.PARAMETER, name, shape) for name in ("k", "r")]
    first = [buffer(MIB, at, 60, Category.GRADIENT, "", shape) for at in (10, 11)]
    assert not list(find_gradient_copies(analysis_of(*kernels, *first)))
    # WHEN a second micro-batch's come before these are used
    second = [buffer(MIB, at, 60, Category.GRADIENT, "", shape) for at in (20, 21)]
    (found,) = find_gradient_copies(analysis_of(*kernels, *first, *second))
    assert found.title.startswith("2 gradients of k and r are alive together: 4.00 MiB (67%")
    assert found.saves_bytes == 2 * MIB
    assert "others" not in found.title
    assert "other variable" not in found.title


def test_a_large_tensor_saves_what_half_of_it_would() -> None:
    rows = [buffer(8 * MIB, 10, 20, Category.TEMPORARY, "", "[32,65536]")]
    rows += [buffer(5 * MIB, 50, 60, Category.TEMPORARY)]
    (found,) = find_largest(analysis_of(*rows, batch=32))
    assert found.saves_bytes == 3 * MIB
    assert "half the batch size lowers the peak to 5.00 MiB" in found.detail
    # an activation is told with the others, and what saves next to nothing not at all
    kept = [buffer(8 * MIB, 10, 20, Category.ACTIVATION)]
    assert not list(find_largest(analysis_of(*kept)))
    assert list(find_largest(analysis_of(*kept, mode="infer")))
    again = [buffer(8 * MIB, at, at + 9, Category.TEMPORARY) for at in (10, 20)]
    assert not list(find_largest(analysis_of(*again)))


@pytest.mark.parametrize(
    ("slots", "saves", "words"),
    [(2, MIB, "saves 1.00 MiB"), (1, MIB, "Plain SGD without momentum")],
)
def test_state_says_what_another_optimizer_saves(slots: int, saves: int, words: str) -> None:
    rows = [buffer(MIB, 0, 100, Category.PARAMETER, "k")]
    rows += [buffer(MIB, 0, 100, Category.OPTIMIZER_STATE, f"s{n}") for n in range(slots)]
    (found,) = find_state(analysis_of(*rows))
    assert found.saves_bytes == saves
    assert words in found.detail
    assert "0 B less" not in found.detail


def test_waste_in_chunks_saves_allocated_bytes() -> None:
    analysis = analysis_of(buffer(MIB, 10, 20, Category.TEMPORARY))
    waste = replace(analysis.fragmentation, unsplit_bytes=MIB // 2)
    (found,) = find_internal_waste(replace(analysis, fragmentation=waste))
    assert (found.saves_bytes, found.saves_kind) == (MIB // 2, "allocated")


def test_absent_stretches_beyond_the_step_do_not_count() -> None:
    analysis = analysis_of(buffer(MIB, 10, 20, Category.TEMPORARY))
    sizes = np.array([MIB, MIB])
    assert saved_without(analysis, sizes, np.array([-50, 20]), np.array([5, 400])) == 0
