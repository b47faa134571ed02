"""The command that each answer ends with."""

import shlex
from dataclasses import replace

from builders import analyze, opened_sample
from msgspec.structs import replace as replace_fields

from analyzer.model.contract.child_messages import TargetKind
from analyzer.model.contract.report_file import Kind, SimulatedCardNotice
from analyzer.report.actions import change_items, suggest_next


def options_exist(command: str) -> bool:
    words = shlex.split(command)
    known = analyze(words[1], "--help").out
    return all(word in known for word in words if word.startswith("--"))


def test_an_estimate_is_followed_by_a_run_of_the_same_step() -> None:
    report = opened_sample("cnn").report
    card = SimulatedCardNotice(cards=("t4",))
    step = replace(
        report.step,
        mode="infer",
        options=("--shape", "ids=64", "--no-jit"),
    )
    command = suggest_next(
        replace_fields(report, kind=Kind.ESTIMATE, simulated_card=card, step=step)
    )
    assert {"--gpu", "t4", "--mode", "infer"} <= set(shlex.split(command))
    assert "--shape ids=64 --no-jit" in command
    assert options_exist(command)


def test_a_name_from_a_trace_stays_one_word() -> None:
    report = opened_sample("cnn").report
    target = replace_fields(report.target, text="a b; rm -rf /")
    command = suggest_next(replace_fields(report, target=target))
    assert shlex.split(command)[2] == "a b; rm -rf /"


def test_no_code_for_tensorflow_follows_a_trace_of_jax() -> None:
    report = opened_sample("cnn").report
    target = replace_fields(report.target, kind=TargetKind.TRACE)
    of_jax = replace_fields(
        report, target=target, step=replace(report.step, is_jax=True)
    )
    assert "--html" in suggest_next(of_jax)
    assert any(item.code for item in change_items(report))
    assert not any(item.code for item in change_items(of_jax))
