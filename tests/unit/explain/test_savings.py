"""What findings save is worked out on the timeline, and how much that matters follows from it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
from builders import sample_folder

from analyzer.explain.all_findings import collect
from analyzer.explain.analysis import Analysis, analyse, saved_without
from analyzer.explain.questions.peak_owner import (
    find_largest,
)
from analyzer.model.choice import Category
from analyzer.model.contract.report.limit_figures import Basis, Outcome, VerdictFigures
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.recording.records import (
    Device,
    Finding,
    Kind,
    Recording,
    Severity,
    Step,
)
from analyzer.model.recording.schema import ALLOCATIONS, EVENTS, conform, empty
from analyzer.session.opening import open_result

MIB = 1 << 20
Row = tuple[
    int, int, int, Category, str, str
]  # bytes, born, dies, category, variable, shape


def analysis_of(*rows: Row, batch: int | None = None, mode: str = "train") -> Analysis:
    """Return the analysis of one step of 100 instants with these buffers."""
    sizes, born, dies, categories, variables, shapes = (
        list(column) for column in zip(*rows, strict=False)
    )
    table = pd.DataFrame(
        {
            **{
                name: ""
                for name, column in ALLOCATIONS.items()
                if column.dtype == "category"
            },
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
    ).assign(
        **dict.fromkeys(("address", "born_ps", "dies_ps", "turns_at", "part_of"), pd.NA)
    )
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
    size: int,
    born: int,
    dies: int,
    category: Category,
    variable: str = "",
    shape: str = "",
) -> Row:
    return size, born, dies, category, variable, shape


@cache
def finding(name: str, id_: str) -> Finding | None:
    found = open_result(sample_folder(name), search=False).findings
    return next((each for each in found if each.id == id_), None)


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


def test_a_second_peak_nearly_as_high_leaves_little_to_save() -> None:
    # GIVEN a large buffer at the peak, and another instant that is nearly as high
    analysis = analysis_of(
        buffer(10 * MIB, 10, 20, Category.TEMPORARY),
        buffer(9 * MIB, 50, 60, Category.TEMPORARY),
    )
    # WHEN the first is gone, THEN the second one is the peak
    assert saved_without(analysis, [10 * MIB], [10], [20]) == MIB
    # only while it is gone
    assert saved_without(analysis, [10 * MIB], [10], [19]) == 0
    assert saved_without(analysis, [], [], []) == 0


def test_the_activations_of_the_transformer_come_first() -> None:
    kept = finding("transformer", "retained-activations")
    assert kept is not None
    assert kept.severity is Severity.HIGH
    assert kept.saves_bytes
    assert open_result(sample_folder("transformer"), search=False).findings[0] == kept


def test_gradients_of_micro_batches_are_counted() -> None:
    found = finding("accumulation", "gradient-copies")
    assert found is not None
    assert found.severity is Severity.HIGH
    assert found.title.startswith(
        "4 gradients of sequential/dense/kernel are alive together"
    )
    kernels = [row for row in found.evidence if row["of"] == "sequential/dense/kernel"]
    assert len(kernels) == 4
    # one of four stays
    assert found.saves_bytes >= 3 * 64 * 256 * 4
    for name in ("cnn", "transformer", "lstm", "eager"):
        assert finding(name, "gradient-copies") is None, name


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
