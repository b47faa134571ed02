"""A compiled function inside a step that is not compiled, on an H100 (``notes/handed_on``).

``inner(x)`` says ``jit_compile`` and returns ``x``, ``2 sin(x)`` and a variable's value; the step adds
the sums. On the phantom H100 the call asked for 4 MiB, the second result, alone.
"""

from __future__ import annotations

from pathlib import Path

from analyzer.cards import find_gpu
from analyzer.simulate.compiler.step_plans import card_step
from analyzer.simulate.predict.predicted_recording import predict_note
from analyzer.tracing.parse.run_folder import read_run

NOTE = Path(__file__).parent / "notes" / "handed_on" / "run.json"
REAL_REQUESTS = [4 << 20, 4 << 20, 21503, 21503]
"""Of the last step, those above 4 KiB: the product, the second result, the sums' scratch."""


def test_results_that_are_arguments_are_not_asked_for() -> None:
    note = read_run(NOTE)
    step = card_step(note, NOTE.parent, find_gpu("h100-80gb-sxm"))
    (plan,) = step.plans.values()
    assert plan.handed_on == {0: 0, 2: 1}
    assert not plan.aliases
    rows = predict_note(note, plans=step.plans).recording.allocations
    asked = rows[(rows["step"] == 2) & (rows["requested_bytes"] > 4096)].sort_values("born")
    assert asked["requested_bytes"].tolist() == REAL_REQUESTS
    by_output = asked[asked["op"] == "StatefulPartitionedCall"]
    assert by_output["tensor"].tolist() == ["StatefulPartitionedCall:1"]


def test_an_argument_lives_until_its_last_reader_under_the_other_name_is_done() -> None:
    note = read_run(NOTE)
    step = card_step(note, NOTE.parent, find_gpu("h100-80gb-sxm"))
    recording = predict_note(note, plans=step.plans).recording
    rows = recording.allocations
    last = rows[rows["step"] == 2]
    product = last[last["op"] == "mul"].iloc[0]
    scratch = last[last["requested_bytes"] == 21503]
    assert (scratch["born"] < product["dies"]).any()
