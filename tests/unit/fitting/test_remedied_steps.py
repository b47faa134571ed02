"""Which remedies are tried, and which sets of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.fitting.search import remedied_steps
from analyzer.fitting.search.remedied_steps import StepNeed, tried_remedies
from analyzer.fitting.search.remedy_plans import NAMES, merged, plans_for
from analyzer.fitting.search.step_access import BatchCaptures, StepAccess
from analyzer.fitting.search.what_if import names_in
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import StepNote
from analyzer.model.errors import InputError
from analyzer.tracing.parse.run_folder import RunNote

MIB = 1 << 20
NOTE = RunNote(step=StepNote(mode="train", optimizer="Adam", dtype_policy="float32", jit=False))
OPTIONS = CaptureOptions(batch_size=64)
NEED = StepNeed(requested_bytes=MIB, allocated_bytes=MIB, fits=None)
SAVES = {"mixed-bfloat16": 10, "mixed-float16": 9, "optimizer-sgd": 6, "accumulate-4": 12}
"""MiB of 40 that each saves alone; two kinds together save one less than their sum."""


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no step be captured; return the names of those that would have been."""
    names: list[str] = []

    def need(
        trial: object, options: CaptureOptions, name: str, made: Path | None = None
    ) -> tuple[RunNote, StepNeed]:
        names.append(name)
        parts = [SAVES.get(part, 0) for part in name.split("+")]
        size_bytes = (40 - sum(parts) + len(parts) - 1) * MIB
        limit_bytes = trial.limit_bytes  # type: ignore[attr-defined]
        fits = None if limit_bytes is None else size_bytes <= limit_bytes
        return NOTE, StepNeed(requested_bytes=size_bytes, allocated_bytes=size_bytes, fits=fits)

    monkeypatch.setattr(remedied_steps, "_need", need)
    return names


def tried(limit_mib: int | None, *names: str) -> tuple[remedied_steps.StepRemedy, ...]:
    access = StepAccess("step", lambda options, folder: folder, None, Path())
    limit_bytes = None if limit_mib is None else limit_mib * MIB
    return tried_remedies(access, OPTIONS, names, limit_bytes, None, lambda stage, share: None)


def test_the_one_that_saves_most_comes_first(captured: list[str]) -> None:
    found = tried(None)
    assert found[0].id == "accumulate-4"
    assert [one.saves_bytes for one in found] == sorted(
        (one.saves_bytes for one in found), key=lambda saved: -(saved or 0)
    )
    assert not any("+" in name for name in captured)
    assert "optimizer-adadelta" not in captured


def test_no_set_is_tried_where_one_remedy_is_enough(captured: list[str]) -> None:
    assert any(one.fits for one in tried(28))
    assert not any("+" in name for name in captured)


def test_the_set_of_least_effort_that_fits_is_found(captured: list[str]) -> None:
    found = {one.id: one for one in tried(20)}
    sets = [name for name in captured if "+" in name]
    assert sets == ["mixed-bfloat16+accumulate-4"]
    chosen = found[sets[0]]
    assert chosen.fits
    assert chosen.saves_bytes == 21 * MIB
    assert "set_dtype_policy" in chosen.code
    assert "gradient_accumulation_steps" in chosen.code


def test_two_precisions_are_never_in_one_set(captured: list[str]) -> None:
    tried(12)
    for name in captured:
        assert sum(part.startswith("mixed-") for part in name.split("+")) <= 1


def test_a_set_is_made_with_all_its_changes() -> None:
    plans = {plan.id: plan for plan in plans_for(OPTIONS, NOTE)}
    made = merged(OPTIONS, (plans["mixed-float16"], plans["accumulate-4"], plans["remat-full"]))
    assert made == replace(
        OPTIONS, batch_size=16, dtype_policy="mixed_float16", remedy="accumulate=4,remat=full"
    )


def test_a_name_that_is_none_lists_those_there_are(captured: list[str]) -> None:
    with pytest.raises(InputError) as told:
        tried(None, "mixed-int4")
    assert "mixed-float16" in told.value.hint


@pytest.mark.parametrize(
    ("text", "names"),
    [("", None), (" , ", None), ("all", ()), ("half-batch, jit", ("half-batch", "jit"))],
)
def test_names_are_taken_apart(text: str, names: tuple[str, ...] | None) -> None:
    assert names_in(text) == names


def test_steps_of_one_execution_are_no_remedy() -> None:
    with pytest.raises(InputError, match="saves no memory"):
        names_in("steps_per_execution")


def test_a_compiled_step_is_taken_apart_as_it_is_op_by_op(
    captured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA leaves no layers to tell apart: the order of the layers is read from another capture."""
    noted: list[bool | None] = []

    def note(captures: BatchCaptures, size: int) -> RunNote:
        noted.append(captures._options.jit)
        return replace(NOTE, step=replace(NOTE.step, jit=False))

    monkeypatch.setattr(BatchCaptures, "note", note)
    compiled = replace(NOTE, step=replace(NOTE.step, jit=True))
    monkeypatch.setattr(
        remedied_steps, "_need", lambda trial, options, name, made=None: (compiled, NEED)
    )
    with pytest.raises(InputError, match="no chain"):
        tried(None, "recompute-blocks")
    assert noted == [False]


def test_every_remedy_of_a_step_has_a_name_that_is_known() -> None:
    for policy in ("float32", "float64"):
        for jit in (True, False):
            step = StepNote(mode="train", optimizer="SGD", dtype_policy=policy, jit=jit)
            assert {plan.id for plan in plans_for(OPTIONS, RunNote(step=step))} <= set(NAMES)
    with pytest.raises(InputError, match="half-bach"):
        names_in("jit,half-bach")


def test_a_saving_lies_between_those_of_any_run_before_and_any_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = {"as-is": (10, 13), "optimizer-sgd": (6, 8), "freeze": None}

    def need(
        trial: object, options: CaptureOptions, name: str, made: Path | None = None
    ) -> tuple[RunNote, StepNeed]:
        return NOTE, replace(NEED, ends_bytes=ends[name])

    monkeypatch.setattr(remedied_steps, "_need", need)
    found = {one.id: one for one in tried(None, "optimizer-sgd", "freeze")}
    sgd, freeze = found["optimizer-sgd"], found["freeze"]
    assert (sgd.saves_low_bytes, sgd.saves_high_bytes) == (2, 7)
    assert (freeze.saves_low_bytes, freeze.saves_high_bytes) == (None, None)
