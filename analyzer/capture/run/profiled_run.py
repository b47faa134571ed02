"""Run a step several times under the profiler, or at several sizes without it."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from analyzer.capture.graph import plain_graphs as graphs
from analyzer.capture.graph.op_phases import list_ran_graphs
from analyzer.capture.private_names import (
    Function,
    collect_executed_graphs,
    disable_python_tracing,
    find_open_optimizers,
)
from analyzer.capture.process.child_environment import check_collectives
from analyzer.capture.run.instrumentation import Observations, observe_step
from analyzer.capture.run.live_objects import find_live_objects
from analyzer.capture.run.program_values import ProgramValues
from analyzer.capture.run.source_frames import find_user_line
from analyzer.capture.run.step_capture import (
    Captured,
    Capturing,
    add_compiled_functions,
    classify_failure,
    describe_capture,
    describe_failure,
)
from analyzer.capture.run.step_variables import StepVariables, find_address
from analyzer.capture.run.true_values import trace_with_true_values
from analyzer.capture.targets.host_setup import collect_setup_values
from analyzer.capture.targets.step_program import Program
from analyzer.model.contract.child_messages import SizeRun
from analyzer.model.contract.fields import TwoSizes
from analyzer.model.contract.run_note import STEP_WITH_ALL, Failure, StepConfig
from analyzer.model.errors import FailureKind, InputError, StepOutOfMemory, TargetError
from analyzer.model.interrupts import pause_collector
from analyzer.model.progress import report_stage
from analyzer.simulated_card.card_environment import SHORT_POOL
from analyzer.simulated_card.core_calls import delay_kernels, read_requested_peak

_STEP_NAME = "train"  # Keras' TensorBoard callback gives its steps the same name


# Repeats of a step on a simulated card. With two traced steady steps they make 39 runs, and one more
# run lies outside their least and largest peak with a chance of 2 in 40, 5 %.
_MOST_REPEATS = 37

_REPEAT_SHARE = 0.1  # of the time of tracing and running the step
_REPEATS_S = 1.0  # for repeats if that share is shorter; most of it is delays

# Delays of the repeats in turn, in ns: the longest of a launch, that of each kernel, and the tick of the
# launches. Runs in one process are alike; other threads and cards are slower or faster, and ops end in
# another order.
_NO_DELAY = (0, 0, 0)
_DELAYS = (_NO_DELAY, (100_000, 0, 0), (0, 50_000, 0), (200_000, 100_000, 0))

# Delay of the traced steps and of every second repeat if the host computes values for the card. That
# takes longer than the card's own launches; with it, other ops run before the values are there, and
# branches that wait for them go on side by side.
_LONG_DELAY = (0, 0, 1_000_000)


@contextmanager
def profiling(logdir: Path) -> Iterator[Callable[[], None]]:
    """Trace the block into ``logdir``; the trace is written even if the block fails.

    Yields a function that ends the trace before the block ends.
    """
    tf.profiler.experimental.start(str(logdir))
    owner = os.getpid()

    with ExitStack() as block:
        block.callback(tf.profiler.experimental.stop)
        try:
            yield block.close
        finally:
            if os.getpid() != owner:  # in a fork by the user's code
                block.pop_all()


def run_steps(
    make: Callable[[], Program],
    steps: int,
    *,
    end_trace: Callable[[], None] = lambda: None,
    own_process: bool = True,
    dump: Path | None = None,
    then: Callable[[Capturing], None] | None = None,
) -> Captured:
    """Make the step and run it ``steps`` times; call inside ``profiling``, except with ``then``.

    On a simulated card the step then runs more often, without the profiler.

    An error of the step is recorded. An error while making it is raised, unless memory ran out. Without
    ``own_process`` the user's variables keep their buffers and get their values back. With ``then``,
    which is called after the steps, their graph is not read.
    """
    partitions: list[Any] = []
    with observe_step() as observed, collect_setup_values() as setup:
        report_stage("building the model")
        try:
            with disable_python_tracing():
                program = make()
        except (TargetError, tf.errors.ResourceExhaustedError) as failure:
            state = _describe_unmade(failure)
        else:
            program.messages += setup.list_notes() if setup else ()
            observed.eager = program.function is None
            state = Capturing(
                program=program,
                observed=observed,
                variables=StepVariables(program),
                inputs=[find_address(tensor) for tensor in program.args],
                wanted=steps,
                setup=setup,
            )

            wanted = None if then else partitions

            try:
                _run(state, wanted, end_trace, own_process=own_process)
            except InputError:
                raise
            except (SystemExit, Exception) as failure:
                state.error = describe_failure(failure)

        if then is not None:
            then(state)
            state.function = None

    return _describe(state, partitions, dump)


def _describe(state: Capturing, partitions: list[Any], dump: Path | None) -> Captured:
    """Return the result of a run, with the graphs of the functions that ran."""
    report_stage("reading the graph")

    with pause_collector():
        others = find_live_objects(Function) if state.function is None else ()
        captured = describe_capture(
            state,
            partitions,
            others=list_ran_graphs((one, ()) for one in others),
        )
        if dump is not None and state.function is not None:
            add_compiled_functions(captured, state.function, dump, state.observed)

    return captured


def _describe_unmade(failure: BaseException) -> Capturing:
    """Return the state of a step whose weights or inputs alone do not fit; raise other failures."""
    cause = failure.__cause__ if isinstance(failure, TargetError) else failure
    if not isinstance(cause, tf.errors.ResourceExhaustedError):
        raise failure

    program = Program(call=lambda: None, args=(), config=StepConfig())
    return Capturing(
        program,
        Observations(),
        StepVariables(program),
        [],
        0,
        error=replace(describe_failure(cause), where=find_user_line(cause)),
    )


def _run(
    state: Capturing,
    partitions: list[Any] | None,
    end_trace: Callable[[], None],
    *,
    own_process: bool,
) -> None:
    """Trace the step and run it, with its progress in ``state``."""
    report_stage("tracing the step")
    began_s = time.monotonic()
    is_on_simulated_card = "SIMULATED_CARDS" in os.environ

    if partitions is None or is_on_simulated_card:
        # The step is then traced once instead of twice. Their variables count in the whole first step;
        # otherwise it makes each of them at some time before its use.
        for optimizer, weights in find_open_optimizers(state.program):
            optimizer.build(weights)

    with disable_python_tracing():
        state.function = state.variables.function = trace_with_true_values(state)

    if is_on_simulated_card and state.function is not None:
        check_collectives(
            {op.type for op in graphs.list_ops(state.function.graph)}, tf.__version__
        )

    with ExitStack() as block:
        if own_process:
            state.variables.rehome_small()
        else:
            block.callback(state.variables.restore, state.variables.values())

        if is_on_simulated_card and state.function is None:
            eager = ProgramValues(state.setup)
            state.unknown = eager.unknown
            state.assumed = eager
            block.enter_context(eager.give())

        state.variables.snapshot()

        for index in range(state.wanted):
            report_stage(f"running step {index + 1} of {state.wanted}")
            _run_step(state, index, partitions)
            state.done += 1
            state.variables.snapshot()

        if is_on_simulated_card and partitions is not None:
            spent_s = time.monotonic() - began_s
            report_stage("writing the trace")
            end_trace()
            report_stage("repeating the step")
            _repeat_step(state, spent_s)


def _run_step(state: Capturing, index: int, partitions: list[Any] | None) -> None:
    """Run a traced step; the first one of a function sets ``partitions`` to its executed graphs."""
    if state.assumed is not None:
        state.assumed.assign(index == STEP_WITH_ALL)

    has_graph = index == 0 and state.function is not None
    with ExitStack() as stack:
        stack.enter_context(collect_executed_graphs(partitions if has_graph else None))
        if "SIMULATED_CARDS" in os.environ:
            is_long = index and state.computed
            stack.enter_context(delay_kernels(*_LONG_DELAY if is_long else _NO_DELAY))

        _call_step(state, index)


def _call_step(state: Capturing, number: int) -> None:
    """Run the step once, marked in the trace with its number.

    Its result lives until the step ends, as in ``step(x)`` and in ``fit``, which keeps only the logs.
    """
    with tf.profiler.experimental.Trace(_STEP_NAME, step_num=number, _r=1):
        result = state.program.call()  # lives until the step ends
        if tf.config.list_logical_devices("GPU"):  # the marker spans the card's work
            tf.test.experimental.sync_devices()

    with suppress(TypeError, ValueError):  # a structure of its own kind
        tensors = [one for one in tf.nest.flatten(result) if isinstance(one, tf.Tensor)]
        state.result = [tf.TensorSpec.from_tensor(one) for one in tensors]


def _repeat_step(state: Capturing, spent_s: float) -> None:
    """Run the step more often, to see how its peaks vary; nobody traces these runs.

    The repeats make the range of peak, need and limit, and nothing else in an answer (``run_range``).
    There is one with each delay. They go on for their share of the time, unless the peaks of a compiled
    step are equal. A step at several sizes (``answer_sizes``), a script and a step on real devices have
    none. A repeat that fails ends them; a note reports a lack of memory.
    """
    if read_requested_peak() < 0:
        state.program.messages.append(
            "The range of the step is unknown, because this version of TensorFlow cannot count "
            "the requests of further runs."
        )

        return

    state.observed.eager = False  # no trace gets the marks of gradients any more
    began_s = time.monotonic()
    peaks = state.repeats
    most_s = max(_REPEAT_SHARE * spent_s, _REPEATS_S)

    # One module has one order. Op by op, an order can come many times in turn.
    is_compiled = state.program.config.jit

    while len(peaks) < _MOST_REPEATS:
        is_late = time.monotonic() - began_s > most_s
        has_each_delay = len(peaks) >= len(_DELAYS)
        has_one_peak = is_compiled and len(set(peaks)) == 1

        if has_each_delay and (is_late or has_one_peak):
            return

        is_long = len(peaks) % 2 and state.computed
        delays = _LONG_DELAY if is_long else _DELAYS[len(peaks) % len(_DELAYS)]

        try:
            peaks.append(_measure_repeat(state, delays))
        except Exception as error:
            if classify_failure(error) is FailureKind.OUT_OF_MEMORY:
                if SHORT_POOL in os.environ:
                    raise  # the card has more

                state.program.messages.append(
                    f"Of {len(peaks) + 1} further runs of the step the last ran out of memory."
                )

            return


def _measure_repeat(state: Capturing, delays: tuple[int, int, int]) -> TwoSizes:
    """Run the step once with delays; return its peaks on the first card."""
    card = "GPU:0"
    tf.config.experimental.reset_memory_stats(card)
    read_requested_peak()

    with delay_kernels(*delays):
        _call_step(state, state.wanted)

    allocated_bytes = tf.config.experimental.get_memory_info(card)["peak"]

    return TwoSizes(
        requested_bytes=read_requested_peak(),
        allocated_bytes=allocated_bytes,
    )


@contextmanager
def trace_block(logdir: Path) -> Iterator[None]:
    """Trace the block into ``logdir``, with garbage collected at both ends.

    Raises:
        InputError: the allocator writes no events, or another profile is active.
    """
    if not tf.config.list_logical_devices("GPU") and not _has_statistics():
        raise InputError(
            "TensorFlow started in this process on an allocator that writes no memory events.",
            "Set TF_CPU_ALLOCATOR_USE_BFC=1 before TensorFlow makes its first tensor: in the "
            "environment, or at the top of conftest.py.",
        )

    gc.collect()

    try:
        tf.profiler.experimental.start(str(logdir))
    except tf.errors.AlreadyExistsError:
        raise InputError(
            "Another profile is active, and TensorFlow takes one at a time.",
            "Stop it around the measured block.",
        ) from None

    try:
        # Freed at once: it shows the bytes in use even if the block allocates nothing.
        tf.add(tf.ones([2]), 1.0)
        yield
    finally:
        gc.collect()
        with suppress(tf.errors.UnavailableError):  # the block stopped it
            tf.profiler.experimental.stop()


def _has_statistics() -> bool:
    """Return whether the CPU's allocator counts the bytes in use."""
    tensor = tf.ones([2]) + 1.0
    in_use_bytes = 0

    with suppress(ValueError, tf.errors.OpError):
        in_use_bytes = tf.config.experimental.get_memory_info("CPU:0")["current"]

    del tensor

    return in_use_bytes > 0


_LONGEST_DETAIL = 200  # characters of an error

# Steps at a size: the order of ops differs between them, and so does the room that they need. They
# end after some seconds, but not before the steps of a capture.
_MOST_STEPS = 20
_LONGEST_S = 1.0


def answer_sizes(send: Callable[[SizeRun], None], pipe: Path, state: Capturing) -> None:
    """Answer for the size that has run, then for the sizes in the pipe if the batch axis is open.

    The parent writes one size after each answer, and closes the pipe at the end.
    """
    program = state.program
    error = _check_pool(state.error or _measure(program, state.wanted))

    if program.resize is None or not pipe.exists():
        send(_describe_run(error, is_open=False))
        return

    with pipe.open() as sizes:  # before the answer, after which the parent may close it
        send(_describe_run(error, is_open=True))
        for line in sizes:
            gc.collect()  # buffers of the size before
            error = _check_pool(_measure(program, state.wanted, int(line)))
            send(_describe_run(error, is_open=True))


def _check_pool(error: Failure | None) -> Failure | None:
    """Return the error of a size, or raise it if the card has more memory than the pool."""
    is_short = SHORT_POOL in os.environ
    if error is not None and is_short and error.kind is FailureKind.OUT_OF_MEMORY:
        raise StepOutOfMemory(error.message)

    return error


def _measure(program: Program, steps: int, size: int | None = None) -> Failure | None:
    """Run several steps, at another size if one is given; return the error, if any.

    The peak is that of all steps but the first, in which cuDNN's trials take what memory they find.
    """
    began_s = time.monotonic()
    try:
        if program.resize is not None and size is not None:
            program.call = program.resize(size)

        for number in range(_MOST_STEPS):
            if number >= steps and time.monotonic() - began_s > _LONGEST_S:
                break

            result = program.call()  # lives until the step ends
            tf.test.experimental.sync_devices()
            del result

            if number == 0:
                for card in _list_cards():
                    tf.config.experimental.reset_memory_stats(card)
    except Exception as failure:
        return describe_failure(failure)

    return None


def _list_cards() -> list[str]:
    return [
        f"GPU:{index}" for index in range(len(tf.config.list_logical_devices("GPU")))
    ]


def _describe_run(error: Failure | None, *, is_open: bool) -> SizeRun:
    """Return the answer of a run: the most memory of a card, or the error."""
    if error is not None:
        detail = error.message.partition("\n")[0][:_LONGEST_DETAIL]
        return SizeRun(kind=error.kind, detail=detail, is_open=is_open)

    uses = [tf.config.experimental.get_memory_info(card) for card in _list_cards()]
    return SizeRun(
        peak_bytes=max((use["peak"] for use in uses), default=0),
        fixed_bytes=max((use["current"] for use in uses), default=0),
        is_open=is_open,
    )
