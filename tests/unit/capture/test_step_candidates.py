"""Which of a program's calls is its step: what trains goes first, after enough calls of it."""

from __future__ import annotations

from analyzer.capture.watch.steps.gradient_steps import GradientSteps
from analyzer.capture.watch.steps.step_candidates import GRADIENTS, StepCandidates, StepRank


def test_what_trains_goes_before_what_computes_and_is_traced_after_the_warm_up() -> None:
    candidates = StepCandidates(warmup=2)
    # GIVEN a function that computes, called before each call of one that trains
    for _ in range(2):
        candidates.counted("data", StepRank.COMPUTES)
        candidates.counted("train", StepRank.TRAINS)
    # THEN the one that trains is warm, and the other waits for what may train after it
    assert candidates.is_warm("train")
    assert not candidates.is_warm("data")
    candidates.choose("train", None)
    assert candidates.trains
    assert not candidates.goes_before("data")
    # AND steps are the chosen calls alone
    candidates.counted("data", StepRank.COMPUTES)
    assert candidates.steps == 2
    assert candidates.most_calls == 2


def test_what_only_computes_is_taken_until_something_more_like_a_step_comes() -> None:
    candidates = StepCandidates(warmup=1)
    for _ in range(4):
        assert not candidates.most_calls or not candidates.is_warm(GRADIENTS)
        candidates.counted(GRADIENTS, StepRank.GRADIENT)
    assert candidates.is_warm(GRADIENTS)
    candidates.choose(GRADIENTS, None)
    assert candidates.words == "an eager gradient, op by op"
    candidates.counted("adam", StepRank.TRAINS)
    assert candidates.goes_before("adam")


def test_a_step_that_fails_in_its_first_call_was_never_counted() -> None:
    candidates = StepCandidates(warmup=3)
    candidates.choose("first", None)
    assert not candidates.trains
    assert candidates.steps == 0


class Tape:
    pass


def test_a_step_ends_where_something_is_recorded_anew() -> None:
    seen, tape = GradientSteps(), Tape()
    assert not seen.began_to_record()  # made
    assert not seen.began_to_record()  # entered
    seen.entered(tape)
    seen.left(tape)
    assert not seen.taken(tape, "loss")
    assert not seen.taken(tape, "loss")  # of another variable: nothing was recorded between
    assert seen.began_to_record()  # entered again, or reset, or another made
    assert not seen.began_to_record()


def test_of_a_tape_that_records_around_the_loop_a_step_ends_where_it_is_asked_again() -> None:
    seen, tape = GradientSteps(), Tape()
    seen.began_to_record()
    seen.entered(tape)
    ends = [seen.taken(tape, line) for line in ("a", "b", "a", "b", "a", "b")]
    assert ends == [False, False, True, False, True, False]
    seen.left(tape)
    assert not seen.taken(tape, "a")
