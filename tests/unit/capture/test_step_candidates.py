"""Which of a program's calls is its step: what trains goes first, after enough calls of it."""

from __future__ import annotations

from analyzer.capture.watch.step_candidates import (
    GRADIENTS,
    GradientSteps,
    StepCandidates,
    StepRank,
)


def test_what_trains_outranks_chosen_what_computes_and_is_traced_after_the_warm_up() -> None:
    candidates = StepCandidates(warmup=2)
    # GIVEN a function that computes, called before each call of one that trains
    for _ in range(2):
        candidates.count("data", StepRank.COMPUTES)
        candidates.count("train", StepRank.TRAINS)
    # THEN the one that trains is warm, and the other waits for what may train after it
    assert candidates.is_warm("train")
    assert not candidates.is_warm("data")
    candidates.choose("train", None)
    assert candidates.trains
    assert not candidates.outranks_chosen("data")
    # AND steps are the chosen calls alone
    candidates.count("data", StepRank.COMPUTES)
    assert candidates.steps == 2
    assert candidates.most_calls == 2


def test_what_only_computes_is_taken_until_something_more_like_a_step_comes() -> None:
    candidates = StepCandidates(warmup=1)
    for _ in range(4):
        assert not candidates.most_calls or not candidates.is_warm(GRADIENTS)
        candidates.count(GRADIENTS, StepRank.GRADIENT)
    assert candidates.is_warm(GRADIENTS)
    candidates.choose(GRADIENTS, None)
    assert candidates.words == "an eager gradient, op by op"
    candidates.count("adam", StepRank.TRAINS)
    assert candidates.outranks_chosen("adam")


def test_a_step_that_fails_in_its_first_call_was_never_counted() -> None:
    candidates = StepCandidates(warmup=3)
    candidates.choose("first", None)
    assert not candidates.trains
    assert candidates.steps == 0


class Tape:
    pass


def test_a_step_ends_where_something_is_recorded_anew() -> None:
    seen, tape = GradientSteps(), Tape()
    assert not seen.start_recording()  # made
    assert not seen.start_recording()  # entered
    seen.open_tapes.add(tape)
    seen.open_tapes.discard(tape)
    assert not seen.take(tape, "loss")
    assert not seen.take(tape, "loss")  # of another variable: nothing was recorded between
    assert seen.start_recording()  # entered again, or reset, or another made
    assert not seen.start_recording()


def test_of_a_tape_that_records_around_the_loop_a_step_ends_where_it_is_asked_again() -> None:
    seen, tape = GradientSteps(), Tape()
    seen.start_recording()
    seen.open_tapes.add(tape)
    ends = [seen.take(tape, line) for line in ("a", "b", "a", "b", "a", "b")]
    assert ends == [False, False, True, False, True, False]
    seen.open_tapes.discard(tape)
    assert not seen.take(tape, "a")
