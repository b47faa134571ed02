"""What the headline says of runs that were to confirm it."""

from __future__ import annotations

import pytest

from analyzer.fitting.scaling.fit_answer import Confirmation, ConfirmingRun, FitAnswer, FormsUsed
from analyzer.fitting.search.fit_target import _said

MIB = 1 << 20


@pytest.mark.parametrize(
    ("runs", "fitting", "told"),
    [
        ({40: True, 41: False}, 19, "it ran on {by}, and 41 did not."),
        ({36: False, 40: True, 44: False}, 19, "it ran on {by}, and 44 did not."),
        ({40: True}, 19, "it ran on {by}."),
        (
            {40: True, 41: False},
            11,
            "it ran on {by}, and 41 did not; another process may take another order of the ops, "
            "38 fits in each that was drawn.",
        ),
    ],
)
def test_the_next_that_failed_and_other_orders_are_named(
    runs: dict[int, bool], fitting: int, told: str
) -> None:
    answer = FitAnswer(
        target="model.py:build",
        varied="batch size",
        mode="train",
        jit=False,
        optimizer="Adam",
        dtype_policy="float32",
        device="gpu",
        card="t4",
        card_name="Tesla T4",
        limit_of="given",
        limit_bytes=100 * MIB,
        limit_low_bytes=100 * MIB,
        limit_high_bytes=100 * MIB,
        largest=40,
        safe=36,
        most=44,
        in_each=38,
        orders_drawn=19,
        orders_fitting=fitting,
        peak_requested_bytes=80 * MIB,
        peak_allocated_bytes=95 * MIB,
        forms=FormsUsed(captured_at=(32, 40), checked_at=(40,), is_closed_form=True),
        confirmation=Confirmation(
            by="phantom",
            predicted=40,
            runs=tuple(ConfirmingRun(size=size, ran=ran) for size, ran in runs.items()),
        ),
    )
    by = "TensorFlow's GPU runtime without the card"
    start = "Batch 40 is the largest that fits Tesla T4 (100.0 MiB): "
    assert _said(answer).headline == start + told.format(by=by)
