"""The code to paste for a remedy."""

import ast

import pytest

from analyzer.fitting.remedy_plans import plan_remedies, write_code
from analyzer.model.contract.child_messages import CaptureOptions
from analyzer.model.contract.fields import Category
from analyzer.model.contract.run_note import StepConfig, VariableNote
from analyzer.tracing.parse.run_folder import RunNote

OPTIONS = CaptureOptions(batch_size=64)
NOTE = RunNote(
    step=StepConfig(mode="train", optimizer="Adam", dtype_policy="float32", jit=False)
)


@pytest.mark.parametrize("is_own_step", [False, True])
def test_the_code_can_be_parsed(is_own_step: bool) -> None:
    for plan in plan_remedies(OPTIONS, NOTE):
        assert ast.parse(write_code(plan, is_own_step=is_own_step)).body


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
