"""Which remedies are tried."""

import threading
from pathlib import Path

import pytest

from analyzer.cards.catalogue import find_gpu
from analyzer.fitting import remedies
from analyzer.fitting.remedies import RemedyTrial, try_remedies
from analyzer.fitting.remedy_plans import choose_plans, parse_remedies, plan_remedies
from analyzer.fitting.step_access import StepAccess, StepEstimate
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.report_file import StepRemedy
from analyzer.model.contract.run_note import StepConfig
from analyzer.tracing.parse.run_folder import RunNote

MIB = 1 << 20
NOTE = RunNote(
    step=StepConfig(mode="train", optimizer="Adam", dtype_policy="float32", jit=False)
)
OPTIONS = CaptureOptions(batch_size=64)
SAVES = {
    "mixed-bfloat16": 10,
    "mixed-float16": 9,
    "optimizer-sgd": 6,
    "accumulate-4": 12,
}
"""MiB of 40 that each saves."""


def make_estimate(size_bytes: int) -> StepEstimate:
    return StepEstimate(
        need_bytes=size_bytes,
        need_high_bytes=size_bytes,
        requested_bytes=size_bytes,
        allocated_bytes=size_bytes,
        note=NOTE,
        notes=(),
    )


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Estimate from ``SAVES`` instead of a capture; return their names."""
    names: list[str] = []

    def estimate(
        access: StepAccess, options: CaptureOptions, name: str
    ) -> StepEstimate:
        name = name.removeprefix("remedy-")
        if name == "unchanged":
            return make_estimate(40 * MIB)
        names.append(name)
        return make_estimate((40 - SAVES.get(name, 0)) * MIB)

    monkeypatch.setattr(remedies, "estimate_step", estimate)
    return names


def try_with(*names: str) -> tuple[StepRemedy, ...]:
    access = StepAccess(
        name="step", folder=Path(), capture=lambda options, folder: folder
    )
    trial = RemedyTrial(access, OPTIONS, None)
    return try_remedies(trial, names)


def test_the_likely_largest_saving_is_tried_and_the_largest_shown_first(
    captured: list[str],
) -> None:
    found = try_with()
    assert found[0].id == "accumulate-4"
    # the step runs op by op when XLA cannot compile it
    assert "XLA" in found[-1].failed
    savings = [remedy.saves_bytes or 0 for remedy in found]
    assert savings == sorted(savings, reverse=True)
    # the step has activations only
    assert captured[0] == "accumulate-4"
    assert captured.index("half-batch") < captured.index("optimizer-sgd")


@pytest.mark.parametrize(
    ("card", "left"),
    [("t4", "mixed-float16"), ("a100", "mixed-bfloat16"), ("mi300x", "mixed-bfloat16")],
)
def test_all_means_the_mixed_precision_of_the_card(card: str, left: str) -> None:
    plans = choose_plans(list(plan_remedies(OPTIONS, NOTE)), (), find_gpu(card))
    assert [one.id for one in plans if "mixed" in one.id] == [left]


def test_two_changes_are_captured_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    def estimate(access: StepAccess, *arguments: object) -> StepEstimate:
        if arguments[1] != "unchanged":
            both.wait(timeout=20)
            assert len({access.name, "first", "second"}) == 2

        return make_estimate(MIB)

    monkeypatch.setattr(remedies, "estimate_step", estimate)
    first, second = (
        StepAccess(name=name, folder=Path(), capture=lambda options, folder: folder)
        for name in ("first", "second")
    )
    trial = RemedyTrial(first, OPTIONS, None, others=(second,))
    found = try_remedies(trial, ("half-batch", "mixed-float16"))
    assert {one.id for one in found} == {"half-batch", "mixed-float16"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", None),
        (" , ", None),
        ("all", ()),
        ("half-batch, jit", ("half-batch", "jit")),
    ],
)
def test_a_list_of_names_is_parsed(text: str, names: tuple[str, ...] | None) -> None:
    assert parse_remedies(text) == names
