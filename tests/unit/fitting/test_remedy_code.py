"""What a user is given to paste for a remedy, and for several at once."""

from __future__ import annotations

import ast
from itertools import combinations

import pytest

from analyzer.fitting.remedy_plans import plan_remedies, write_code
from analyzer.model.choice import Category
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.contract.run_note import StepConfig, VariableNote
from analyzer.tracing.parse.run_folder import RunNote

OPTIONS = CaptureOptions(batch_size=64)
NOTE = RunNote(
    step=StepConfig(mode="train", optimizer="Adam", dtype_policy="float32", jit=False)
)


@pytest.mark.parametrize("is_own_step", [False, True])
def test_what_is_given_for_any_two_can_be_parsed(is_own_step: bool) -> None:
    plans = list(plan_remedies(OPTIONS, NOTE))
    for one, other in combinations(plans, 2):
        ast.parse(write_code([one, other], is_own_step=is_own_step))


def test_an_optimizer_that_is_not_noted_is_known_by_its_variables() -> None:
    slot = VariableNote(
        "rmsprop/dense_kernel_velocity", "float32", (4,), Category.OPTIMIZER_STATE
    )
    note = RunNote(
        step=StepConfig(dtype_policy="float32", jit=False), variables=(slot,)
    )
    titles = {plan.id: plan.title for plan in plan_remedies(OPTIONS, note)}
    assert titles["optimizer-sgd"] == "SGD instead of RMSprop"
    assert "optimizer-rmsprop" not in titles
