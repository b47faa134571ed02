"""The command that each answer ends with."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from builders import analyze, sample_folder
from msgspec.structs import replace as replace_fields

import analyzer
from analyzer.capture.targets.target_spec import write_options
from analyzer.model.contract.capture_request import CaptureOptions, TargetKind
from analyzer.model.contract.report.limit_figures import LimitOf
from analyzer.model.contract.report.subject import Kind, PhantomNotice, StepRemedy
from analyzer.report.actions import change_items, repeat_command, step_options, suggest_next


def options_exist(command: str) -> bool:
    words = shlex.split(command)
    known = analyze(words[1], "--help-all").out
    return all(word in known for word in words if word.startswith("--"))


def test_a_trace_is_followed_by_remedies() -> None:
    command = suggest_next(analyzer.open_trace(sample_folder("cnn")).report)
    assert command == "analyze estimate traces/models.py:cnn --batch-size 16 --what-if all"
    assert options_exist(command)


@pytest.mark.parametrize("jit", [False, True])
def test_an_estimate_is_followed_by_a_run_of_the_same_step(jit: bool) -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    card = PhantomNotice(says="x", cards=("t4",))
    step = replace(
        report.step, jit=jit, mode="infer", options=("--shape", "ids=64", "--loss", "mse")
    )
    command = suggest_next(replace_fields(report, kind=Kind.ESTIMATE, phantom=card, step=step))
    assert ("--no-jit" in command) is not jit
    assert {"--gpu", "t4", "--mode", "infer"} <= set(shlex.split(command))
    assert "--shape ids=64 --loss mse" in command
    assert options_exist(command)


def test_the_users_limit_is_repeated_but_not_for_another_card() -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    assert report.verdict is not None
    verdict = replace_fields(report.verdict, limit_of=LimitOf.USER, limit_bytes=64 << 20)
    limited = replace_fields(report, verdict=verdict)
    assert "--limit 64MiB" in suggest_next(limited)
    assert "--limit" not in repeat_command(limited, "estimate", card="l4")


def test_a_name_from_a_trace_stays_one_word() -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    target = replace_fields(report.target, text="a b; rm -rf /")
    command = suggest_next(replace_fields(report, target=target))
    assert shlex.split(command)[2] == "a b; rm -rf /"


def test_no_command_or_code_for_tensorflow_follows_a_trace_of_jax() -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    target = replace_fields(report.target, kind=TargetKind.TRACE)
    of_jax = replace_fields(report, target=target, step=replace(report.step, is_jax=True))
    assert "--target" in suggest_next(replace_fields(report, target=target))
    assert not suggest_next(of_jax)
    assert any(item.code for item in change_items(report))
    assert not any(item.code for item in change_items(of_jax))


def test_the_terminal_ends_with_it() -> None:
    last = analyze("trace", sample_folder("cnn")).out.rstrip().splitlines()[-1]
    assert last.startswith("Next: analyze estimate ")


@pytest.mark.parametrize(("device", "expected"), [("cpu", " --gpu t4"), ("gpu", "")])
def test_a_script_is_followed_by_a_run_on_a_card(device: str, expected: str) -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    target = replace_fields(report.target, kind=TargetKind.SCRIPT, text="my train.py")
    of_script = replace_fields(
        report, target=target, device=replace_fields(report.device, kind=device)
    )
    assert suggest_next(of_script) == f"analyze trace 'my train.py'{expected}"


@pytest.mark.parametrize(
    "words",
    [
        ("diff", sample_folder("infer"), sample_folder("cnn")),
        ("gpus", "a100"),
    ],
)
def test_other_commands_end_with_it_too(words: tuple[str, ...]) -> None:
    last = analyze(*words).out.rstrip().splitlines()[-1]
    assert last.startswith("Next: analyze ")
    assert options_exist(last.removeprefix("Next: "))


def test_a_step_of_the_user_gets_no_option_that_it_refuses() -> None:
    # GIVEN a step that comes with its own arguments, which have a batch
    report = analyzer.open_trace(sample_folder("accumulation")).report
    assert report.step.batch_size
    # THEN the batch, which the command would refuse, is left out
    command = suggest_next(replace_fields(report, step=replace(report.step, own=True)))
    assert command == "analyze estimate traces/models.py:accumulation --what-if all"


def test_the_users_options_become_words() -> None:
    chosen = CaptureOptions(
        batch_size=8,
        shapes={"": (4,), "ids": (2, 3)},
        optimizer="sgd",
        loss="mse",
        dtype_policy="mixed_float16",
        jit=False,
        inter_op_threads=1,
    )
    words = write_options(chosen)
    assert shlex.join(words) == (
        "--shape 4 --shape ids=2,3 --batch-size 8 --optimizer sgd --loss mse "
        "--dtype-policy mixed_float16 --inter-op-threads 1 --no-jit"
    )
    assert write_options(CaptureOptions()) == ()
    # A batch or XLA's absence that the user gave is not repeated twice.
    repeated = step_options(16, "train", jit=False, card="t4", given=words)
    assert repeated.count("--batch-size") == repeated.count("--no-jit") == 1


def test_a_finding_does_not_repeat_the_code_of_an_estimated_remedy() -> None:
    report = analyzer.open_trace(sample_folder("cnn")).report
    before = [item.code for item in change_items(report)]
    assert before[0].startswith("batch_size = 8")
    half = StepRemedy(id="half-batch", title="A batch of 8", code="batch_size=8", saves_bytes=1)
    after = [item.code for item in change_items(replace_fields(report, remedies=(half,)))]
    assert after == ["batch_size=8", "", *before[1:]]
