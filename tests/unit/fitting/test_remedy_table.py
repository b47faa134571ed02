"""Which remedies are tried, and which sets of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.fitting.remedies import RemedyTrial, parse_remedies, try_remedies
from analyzer.fitting.remedy_plans import merge_options, plan_remedies
from analyzer.fitting.step_access import StepAccess, StepEstimate
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.report_file import StepRemedy
from analyzer.model.contract.run_note import StepConfig
from analyzer.model.errors import InputError
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
"""MiB of 40 that each saves alone; two kinds together save one less than their sum."""


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
    """Estimate from ``SAVES`` instead of a capture; return the names of the estimated sets."""
    names: list[str] = []

    def estimate(
        trial: RemedyTrial, options: CaptureOptions, name: str
    ) -> StepEstimate:
        name = name.removeprefix("remedy-")
        if name == "unchanged":
            return make_estimate(40 * MIB)
        names.append(name)
        parts = [SAVES.get(part, 0) for part in name.split("+")]
        return make_estimate((40 - sum(parts) + len(parts) - 1) * MIB)

    monkeypatch.setattr(RemedyTrial, "estimate", estimate)
    return names


def try_with(limit_mib: int | None, *names: str) -> tuple[StepRemedy, ...]:
    access = StepAccess(
        name="step", folder=Path(), capture=lambda options, folder: folder
    )
    limit_bytes = None if limit_mib is None else limit_mib * MIB
    trial = RemedyTrial(access, OPTIONS, limit_bytes, lambda stage, share: None)
    return try_remedies(trial, names)


def test_the_largest_saving_comes_first(captured: list[str]) -> None:
    remedies = try_with(None)
    assert remedies[0].id == "accumulate-4"
    savings = [remedy.saves_bytes or 0 for remedy in remedies]
    assert savings == sorted(savings, reverse=True)
    assert not any("+" in name for name in captured)


def test_no_set_is_tried_if_one_remedy_is_enough(captured: list[str]) -> None:
    assert any(remedy.fits for remedy in try_with(28))
    assert not any("+" in name for name in captured)


def test_the_set_of_least_effort_that_fits_is_found(captured: list[str]) -> None:
    remedies = {remedy.id: remedy for remedy in try_with(20)}
    sets = [name for name in captured if "+" in name]
    assert sets == ["accumulate-4+mixed-bfloat16"]
    chosen = remedies[sets[0]]
    assert chosen.fits
    assert chosen.saves_bytes == 21 * MIB
    assert "set_dtype_policy" in chosen.code
    assert "gradient_accumulation_steps" in chosen.code


def test_a_set_has_all_its_changes() -> None:
    plans = {plan.id: plan for plan in plan_remedies(OPTIONS, NOTE)}
    chosen = (plans["mixed-float16"], plans["accumulate-4"], plans["lora-8"])
    assert merge_options(OPTIONS, chosen) == replace(
        OPTIONS,
        batch_size=16,
        dtype_policy="mixed_float16",
        remedy="accumulate=4,lora=8",
    )


def test_an_unknown_name_lists_the_remedies(captured: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        try_with(None, "mixed-int4")
    assert "mixed-float16" in raised.value.hint


def test_a_remedy_of_the_other_mode_names_that_mode(captured: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        try_with(None, "quantize-int8")
    assert raised.value.hint.startswith("It needs --mode infer. ")


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
