"""Which options each form of target honours, and the sentence with which it refuses the others.

An option that a user gives is either honoured or refused; it is never passed over. The table here is the
whole of what is decided from the form alone. Four things show only later and are decided where they are
known, with sentences from here too: whether an input's batch axis is open, whether a layer follows the
dtype policy asked for, whether a step of the user's own applies the optimizer or the loss asked for, and
whether a step asked to run op by op calls a function that XLA compiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from analyzer.model.choice import Choice
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.model.errors import FailureKind, InputError


class Option(Choice):
    """The options that say how a step is made and run."""

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
    """What a target turns out to be once it is looked at or loaded."""

    TRACE = "a trace that exists"
    ESTIMATE = "an estimate that exists"
    MODEL = "a Keras model that is not compiled"
    COMPILED_MODEL = "a compiled Keras model"
    INFERENCE = "a Keras model that only infers"
    SAVED_MODEL = "a SavedModel"
    SIGNATURE = "a tf.function with an input signature"
    STEP = "a step with its own arguments"
    EAGER_STEP = "a plain Python function with its own arguments"
    SCRIPT = "a script"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an option cannot be honoured, and what to do.

    Attributes:
        because: What follows "--option cannot be honoured: "; no full stop.
        hint: What to do.
    """

    because: str
    hint: str


_TRACED: Final = Refusal(
    "a trace shows the step as it ran", "Leave it out, or name the model or step itself."
)
_NOTED: Final = Refusal(
    "the folder holds the graph of one step, made before", "Leave it out, or estimate the target."
)
_ARGUMENTS: Final = Refusal(
    "the step comes with arguments of its own, which have their shapes",
    "Leave it out, and change the arguments that your function returns.",
)
_OWN_TRAINING: Final = Refusal(
    "the step applies what its own code says", "Leave it out, and change the step's code."
)
_OWN_MODE: Final = Refusal(
    "the step does what its own code says", "Leave it out, or name the model to have both modes."
)
_INFERS: Final = Refusal("inference uses none", "Leave it out, or use --mode train.")
_SAVED: Final = Refusal(
    "a SavedModel holds a traced graph for inference, with its dtypes",
    "Leave it out, or give the model's code as file.py:name.",
)
_EAGER: Final = Refusal(
    "the step is a plain Python function, which runs op by op",
    "Decorate it with @tf.function, or leave it out.",
)

_OWN_SCRIPT: Final = Refusal(
    "it is run as it is", "Leave it out, or name the model or step in it: script.py:name."
)

_EVERYTHING: Final = tuple(Option)
_TRAINING: Final = (Option.OPTIMIZER, Option.LOSS)

REFUSALS: Final[Mapping[TargetForm, Mapping[Option, Refusal]]] = {
    TargetForm.TRACE: dict.fromkeys(_EVERYTHING, _TRACED),
    TargetForm.ESTIMATE: {
        option: _NOTED
        for option in _EVERYTHING
        # The device is compared with the noted one; threads are simulated anew.
        if option not in (Option.DEVICE, Option.INTER_OP_THREADS)
    },
    TargetForm.MODEL: {},
    TargetForm.COMPILED_MODEL: {},
    TargetForm.INFERENCE: dict.fromkeys(_TRAINING, _INFERS),
    TargetForm.SAVED_MODEL: dict.fromkeys((*_TRAINING, Option.JIT, Option.DTYPE_POLICY), _SAVED),
    TargetForm.SIGNATURE: {
        **dict.fromkeys(_TRAINING, _OWN_TRAINING),
        Option.MODE: _OWN_MODE,
    },
    TargetForm.STEP: {
        **dict.fromkeys(_TRAINING, _OWN_TRAINING),
        **dict.fromkeys((Option.BATCH_SIZE, Option.SHAPE), _ARGUMENTS),
        Option.MODE: _OWN_MODE,
    },
    TargetForm.EAGER_STEP: {
        **dict.fromkeys(_TRAINING, _OWN_TRAINING),
        **dict.fromkeys((Option.BATCH_SIZE, Option.SHAPE), _ARGUMENTS),
        Option.MODE: _OWN_MODE,
        Option.JIT: _EAGER,
    },
    TargetForm.SCRIPT: {
        option: _OWN_SCRIPT
        for option in _EVERYTHING
        if option not in (Option.STEPS, Option.DEVICE, Option.INTER_OP_THREADS)
    },
}
"""What each form refuses; what is not named here it honours."""


def list_given_options(options: CaptureOptions) -> frozenset[Option]:
    """Return the options that the user gave."""
    asked = {
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
    return frozenset(option for option, is_given in asked.items() if is_given)


def check_honoured(name: str, form: TargetForm, given: Iterable[Option]) -> None:
    """Refuse the options that a form of target cannot honour.

    Args:
        name: What the user called the target.
        form: Which form it is.
        given: The options that the user gave.

    Raises:
        InputError: there is one.
    """
    refusals = REFUSALS[form]
    refused = [option for option in _EVERYTHING if option in refusals and option in set(given)]
    if not refused:
        return
    first = refusals[refused[0]]
    alike = [option for option in refused if refusals[option] == first]
    raise make_refusal(name, form, alike, first)


def make_refusal(name: str, form: TargetForm, options: list[Option], why: Refusal) -> InputError:
    """Return the error that says that options of a target cannot be honoured.

    Args:
        name: The target, as the user named it.
        form: Which form of target it is.
        options: The options that it cannot honour, at least one.
        why: The reason, and what to do instead.
    """
    return InputError(
        f"{name} is {form}: {' and '.join(options)} cannot be honoured, for {why.because}.",
        hint=why.hint if len(options) == 1 else why.hint.replace("Leave it out", "Leave them out"),
        kind=FailureKind.FIXED_SIZE if Option.BATCH_SIZE in options else None,
    )


def make_fixed_batch_error(name: str, batch_size: int | None, asked: int) -> InputError:
    """Return the error for an input whose batch axis is not open; None where it has no axes.

    Args:
        name: Name of the input.
        batch_size: Its fixed batch size; None where it has no axes.
        asked: The batch size that was asked for.
    """
    what = "no axes" if batch_size is None else f"a batch of {batch_size}"
    return InputError(
        f"The input {name!r} has {what}: --batch-size {asked} cannot be honoured.",
        hint="Leave it out, or leave the input's first axis open.",
        kind=FailureKind.FIXED_SIZE,
    )


def make_policy_error(name: str, policy: str, found: str) -> InputError:
    """Return the error for a target of which no layer follows the dtype policy asked for.

    Args:
        name: The target, as the user named it.
        policy: The policy that was asked for.
        found: The policies that its layers follow; empty where it has no Keras layers.
    """
    own = f"its layers follow {found}" if found else "it has no Keras layers"
    return InputError(
        f"{name} does not follow --dtype-policy {policy}: {own}.",
        hint="Leave it out, and set the policy in the target's code.",
    )


def make_unused_error(name: str, option: Option, value: str) -> InputError:
    """Return the error for a step of the user's own that passes over a compiled optimizer or loss.

    Args:
        name: The target, as the user named it.
        option: ``--optimizer`` or ``--loss``.
        value: What was asked for.
    """
    return InputError(
        f"{option} {value} cannot be honoured: the train_step of {name} never uses it.",
        hint="Leave it out, and change the model's own train_step or compile.",
    )


def make_eager_jit_error(name: str) -> InputError:
    """Return the error for a Keras model that is made to run eagerly."""
    return InputError(
        f"--jit cannot be honoured: {name} is compiled with run_eagerly=True.",
        hint="Leave it out, or compile the model without run_eagerly.",
    )


def make_inner_jit_error(name: str, function: str) -> InputError:
    """Return the error for a step that asks for XLA deeper down than ``--no-jit`` reaches."""
    return InputError(
        f"--no-jit cannot be honoured: {name} calls {function}, which says jit_compile=True.",
        hint="Leave it out, or change that function.",
    )
