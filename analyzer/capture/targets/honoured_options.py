"""Which options each form of target accepts, and why the others are refused.

An option is either honoured or refused, never ignored. ``REFUSALS`` holds the refusals that follow from
the form of the target alone. Others need the loaded model or the traced step, and are raised there: a
fixed batch axis (``synthetic_inputs``), layers with another dtype policy (``resolve_target``), a step
that never uses the optimizer or the loss, and an inner function that XLA compiles (``step_program``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from analyzer.model.choice import Choice
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import FailureKind, InputError


class Option(Choice):
    """The options that say how a step is built and run."""

    BATCH_SIZE = "--batch-size"
    SHAPE = "--shape"
    MODE = "--mode"
    OPTIMIZER = "--optimizer"
    LOSS = "--loss"
    JIT = "--jit"
    NO_JIT = "--no-jit"
    DTYPE_POLICY = "--dtype-policy"
    STEPS = "--steps"
    DEVICE = "--device"
    INTER_OP_THREADS = "--inter-op-threads"


class TargetForm(Choice):
    """The form of a target, known once it has been inspected or loaded."""

    TRACE = "a trace that exists"
    ESTIMATE = "an estimate that exists"
    MODEL = "a Keras model that is not compiled"
    COMPILED_MODEL = "a compiled Keras model"
    INFERENCE = "a Keras model in inference mode"
    SAVED_MODEL = "a SavedModel"
    SIGNATURE = "a tf.function with an input signature"
    STEP = "a step with its own arguments"
    EAGER_STEP = "a plain Python function with its own arguments"
    SCRIPT = "a script"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for refusing an option, with a hint."""

    because: str
    hint: str


_TRACED: Final = Refusal(
    "a trace shows the step as it ran", "Leave it out, or name the model or the step itself."
)
_NOTED: Final = Refusal(
    "the folder holds the graph of one captured step", "Leave it out, or estimate the target."
)
_ARGUMENTS: Final = Refusal(
    "the step comes with its own arguments, and their shapes are fixed",
    "Leave it out, and change the arguments that your function returns.",
)
_OWN_TRAINING: Final = Refusal(
    "the code of the step decides this", "Leave it out, and change the step's code."
)
_OWN_MODE: Final = Refusal(
    "the code of the step decides this", "Leave it out, or name the model to use either mode."
)
_INFERS: Final = Refusal("inference uses none", "Leave it out, or use --mode train.")
_SAVED: Final = Refusal(
    "a SavedModel holds a traced inference graph with fixed dtypes",
    "Leave it out, or give the model's code as file.py:name.",
)
_EAGER: Final = Refusal(
    "a plain Python function runs op by op", "Decorate it with @tf.function, or leave it out."
)
_OWN_SCRIPT: Final = Refusal(
    "a script runs unchanged", "Leave it out, or name the model or step in it: script.py:name."
)

_TRAINING: Final = dict.fromkeys((Option.OPTIMIZER, Option.LOSS), _OWN_TRAINING)
_FIXED_STEP: Final = {
    **_TRAINING,
    **dict.fromkeys((Option.BATCH_SIZE, Option.SHAPE), _ARGUMENTS),
    Option.MODE: _OWN_MODE,
}
_RUNTIME: Final = frozenset({Option.DEVICE, Option.INTER_OP_THREADS})

REFUSALS: Final[Mapping[TargetForm, Mapping[Option, Refusal]]] = {
    TargetForm.TRACE: dict.fromkeys(Option, _TRACED),
    # An estimate compares the device with the recorded one and simulates any number of threads.
    TargetForm.ESTIMATE: {option: _NOTED for option in Option if option not in _RUNTIME},
    TargetForm.MODEL: {},
    TargetForm.COMPILED_MODEL: {},
    TargetForm.INFERENCE: dict.fromkeys(_TRAINING, _INFERS),
    TargetForm.SAVED_MODEL: dict.fromkeys((*_TRAINING, Option.JIT, Option.DTYPE_POLICY), _SAVED),
    TargetForm.SIGNATURE: {**_TRAINING, Option.MODE: _OWN_MODE},
    TargetForm.STEP: _FIXED_STEP,
    TargetForm.EAGER_STEP: {**_FIXED_STEP, Option.JIT: _EAGER},
    TargetForm.SCRIPT: {
        option: _OWN_SCRIPT for option in Option if option not in (*_RUNTIME, Option.STEPS)
    },
}
"""The refused options of each form; every other option is honoured."""


def list_given_options(options: CaptureOptions) -> frozenset[Option]:
    """Return the options that the user gave, even with the default value."""
    given = {
        Option.STEPS: options.steps is not None,
        Option.MODE: bool(options.mode),
        Option.BATCH_SIZE: options.batch_size is not None,
        Option.SHAPE: bool(options.shapes),
        Option.OPTIMIZER: bool(options.optimizer),
        Option.LOSS: bool(options.loss),
        Option.JIT: options.jit is True,
        Option.NO_JIT: options.jit is False,
        Option.DTYPE_POLICY: bool(options.dtype_policy),
        Option.INTER_OP_THREADS: options.inter_op_threads is not None,
        Option.DEVICE: bool(options.device),
    }
    return frozenset(option for option, is_given in given.items() if is_given)


def check_honoured(name: str, form: TargetForm, given: Iterable[Option]) -> None:
    """Refuse given options that a form of target cannot honour.

    Options with the same reason share one error.

    Raises:
        InputError: the form refuses an option.
    """
    refusals, wanted = REFUSALS[form], set(given)
    refused = [option for option in Option if option in refusals and option in wanted]
    if not refused:
        return
    first = refusals[refused[0]]
    options = [option for option in refused if refusals[option] == first]
    hint = first.hint
    if len(options) > 1:
        hint = hint.replace("Leave it out", "Leave them out")
    raise InputError(
        f"{name} is {form}: {' and '.join(options)} cannot be used, because {first.because}.",
        hint=hint,
        kind=FailureKind.FIXED_SIZE if Option.BATCH_SIZE in options else None,
    )
