"""Parse the text of a target and of options, before TensorFlow is imported.

The text alone decides the kind of a target:

    keras:ResNet50                an application of keras.applications, without weights
    hub:gemma_2b_en               a preset of keras-hub or its folder, without weights
    train.py:build, pkg.mod:step  a name in a file or a module
    model.keras, model.h5         a saved Keras model
    saved/                        a SavedModel folder
    logdir/, run/, x.xplane.pb    an existing trace
    train.py                      a script, for commands that run scripts
"""

import re
from pathlib import Path
from typing import Any

from analyzer.model.contract.child_messages import (
    ASSUMPTIONS,
    CaptureOptions,
    Shapes,
    TargetKind,
    TargetSpec,
)
from analyzer.model.contract.fields import Choice
from analyzer.model.contract.reading import read_table
from analyzer.model.contract.run_note import MOST_STEPS
from analyzer.model.errors import (
    FailureKind,
    InputError,
    TargetError,
    suggest_names,
)
from analyzer.model.units import format_bytes, parse_bytes
from analyzer.tracing.parse.run_folder import is_trace, suggest_command

Assumed = dict[str, int]  # values by name

OPTIMIZER = "adam"  # the optimizer of a model that is not compiled
_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FORMS = (
    "Give keras:NAME, hub:PRESET, file.py:name, package.module:name, a .keras or .h5 file, a "
    "SavedModel folder, a script, a logdir or an .xplane.pb."
)


def check_steps(options: CaptureOptions) -> None:
    """Raise TargetError if the number of steps is out of range."""
    if not 1 <= options.step_count <= MOST_STEPS:
        raise TargetError(
            f"{options.step_count} steps cannot be predicted.",
            f"Give 1 to {MOST_STEPS}; a few steps show everything that repeats.",
        )


def parse_target(text: str, *, scripts: bool = False) -> TargetSpec:
    """Return the kind and parts of a target, or raise TargetError; a plain file may be a script."""
    scheme, _, name = text.partition(":")
    if scheme == "keras":
        if not name.isidentifier():
            raise TargetError(
                f"{text!r} names no application.",
                "Write it as keras:ResNet50.",
            )

        kind = TargetKind.APPLICATION
        return TargetSpec(text=text, kind=kind, path="keras", attribute=name)

    if scheme == "hub":
        if not name:
            raise TargetError(
                "hub: names no preset.",
                "Write it as hub:gemma_2b_en.",
            )

        return TargetSpec(text=text, kind=TargetKind.PRESET, path=name)

    path = Path(text)
    if text and path.exists():
        return _parse_existing(text, path, scripts=scripts)

    if "://" in text:
        raise TargetError(
            f"{text} is an address.",
            "Download it, and give the file.",
        )

    base, _, attribute = text.rpartition(":")
    is_file = base.endswith(".py")

    if base.endswith(".ipynb"):
        raise _refuse_notebook(base)

    if not is_file and not _MODULE_NAME.fullmatch(base):
        message = f"There is no {text}." if text else "The target is empty."
        raise TargetError(message, _suggest_form(text))

    if is_file and not Path(base).is_file():
        raise TargetError(
            f"There is no file {base}.",
            "Check the path before the colon.",
        )

    if not all(part.isidentifier() for part in attribute.split(".")):
        raise TargetError(
            f"{text!r} has no name after the colon.",
            "Write it as file.py:name.",
        )

    kind = TargetKind.FILE if is_file else TargetKind.MODULE

    return TargetSpec(text=text, kind=kind, path=base, attribute=attribute)


def _suggest_form(text: str) -> str:
    """Return a question with the form that was probably meant, or all forms."""
    base, _, name = text.rpartition(".")
    if "::" in text:
        return f"Did you mean {text.replace('::', ':')}?"

    if base in ("keras", "keras.applications"):
        return f"Did you mean keras:{name}?"

    file = Path(f"{base.replace('.', '/')}.py")
    if base and file.is_file():
        return f"Did you mean {file}:{name}?"

    if text.isidentifier():
        return f"Did you mean keras:{text}, or file.py:{text}?"

    folder = Path(text).parent
    names = [one.name for one in folder.iterdir()] if folder.is_dir() else []

    return suggest_names(Path(text).name, names) or _FORMS


def _refuse_notebook(path: str) -> TargetError:
    return TargetError(
        f"{path} is a notebook, and analyze needs a Python file.",
        f"Save it as one: jupyter nbconvert --to script {path}, and remove its lines with % or !.",
    )


def name_module(text: str) -> TargetSpec:
    """Return the target of a module that runs as a script; TargetError if it is no module's name."""
    if not _MODULE_NAME.fullmatch(text) or text.endswith(".py"):
        raise TargetError(
            f"{text} is no module.",
            "Write it as -m package.train, or leave out -m for a file.",
        )

    return TargetSpec(
        text=f"-m {text}",
        kind=TargetKind.SCRIPT,
        path=text,
        attribute=text.rpartition(".")[2],
    )


def _parse_existing(text: str, path: Path, *, scripts: bool) -> TargetSpec:
    if path.suffix == ".ipynb":
        raise _refuse_notebook(text)

    if path.is_dir():
        is_saved = any(path.glob("saved_model.pb*"))
        kind = TargetKind.SAVED_MODEL if is_saved else TargetKind.TRACE
    elif path.suffix == ".py" and not scripts:
        raise TargetError(
            f"{text} is a whole script, and this command needs a model or step.",
            f"Name the model or the step in it: {text}:name. `analyze trace {text}` runs a whole "
            "script.",
        )
    elif path.suffix == ".py":
        kind = TargetKind.SCRIPT
    elif path.suffix in (".keras", ".h5", ".hdf5"):
        kind = TargetKind.KERAS_FILE
    elif is_trace(path):
        kind = TargetKind.TRACE
    else:
        raise TargetError(
            f"{text} is neither a model nor a trace.",
            suggest_command(path) or _FORMS,
        )

    return TargetSpec(text=text, kind=kind, path=text)


def parse_assumptions(texts: list[str]) -> Assumed:
    """Return numbers by name from ``NAME=N`` (trip counts, sizes, branches), or raise TargetError."""
    assumed: Assumed = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.rpartition("="))
        if not name or not number.isdecimal() or len(number) > 9:
            raise TargetError(
                f"--assume {text!r} is not NAME=N.",
                "Use a name that the estimate prints, and a whole number.",
            )

        assumed[name] = int(number)

    return assumed


def parse_card_assumptions(texts: list[str]) -> Assumed:
    """Return assumptions about a simulated card from ``workspace=64MiB``, or raise TargetError."""
    known = {one.name: one for one in ASSUMPTIONS}
    assumed: Assumed = {}

    for text in texts:
        name, _, value = (part.strip() for part in text.rpartition("="))
        if name not in known:
            raise TargetError(
                f"--assume {text!r} is not an assumption about a card.",
                f"Write it as --assume NAME=N, with one of {', '.join(known)}.",
            )

        one = known[name]
        number = int(value) if value.isdecimal() and len(value) <= 15 else -1

        if number < 0 and one.is_bytes:
            number = parse_bytes(value)

        if not 0 <= number <= one.most:
            most = format_bytes(one.most) if one.is_bytes else one.most
            raise TargetError(
                f"--assume {text!r}: give 0 to {most}.",
                f"{one.source}.",
            )

        assumed[name] = number

    return assumed


def parse_shapes(texts: list[str]) -> Shapes:
    """Return axes by input name from ``NAME=224,224,3`` or ``224,224,3``, or raise TargetError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, axes = text.rpartition("=")
        parts = [part.strip() for part in axes.strip("() ").split(",")]
        parts = list(filter(None, parts))

        for part in parts:
            if not re.fullmatch("0*[1-9][0-9]{0,17}", part):
                raise TargetError(
                    f"{text!r} is not a shape.",
                    "Write it as --shape NAME=224,224,3; every axis is at least 1.",
                )

        shapes[name.strip()] = tuple(map(int, parts))

    return shapes


class TargetForm(Choice):
    """The form of a target, known once it has been inspected or loaded."""

    TRACE = "a trace that exists"
    ESTIMATE = "an estimate that exists"
    MODEL = "a Keras model"
    INFERENCE = "a Keras model in inference mode"
    SAVED_MODEL = "a SavedModel"
    SIGNATURE = "a tf.function with an input signature"
    STEP = "a step with its own arguments"
    EAGER_STEP = "a plain Python function with its own arguments"
    SCRIPT = "a script"


# Options with one value that say how a step is built and run.
_PLAIN_OPTIONS = (
    "batch_size",
    "mode",
    "optimizer",
    "loss",
    "dtype_policy",
    "steps",
    "device",
    "inter_op_threads",
)

_BATCH_SIZE = "--batch-size"

# Reasons for refusals, each with a hint; and the refused options of each form, by reason.
_TABLE = read_table("capture/targets/refusals.toml", dict[str, dict[str, Any]])


def _list_given(options: CaptureOptions) -> set[str]:
    """Return the options that the user gave, even with the default value, as ``--batch-size``."""
    values = {name: getattr(options, name) for name in _PLAIN_OPTIONS}
    given = [name for name, value in values.items() if value not in (None, "")]

    if options.shapes:
        given.append("shape")
    if options.jit is not None:
        given.append("jit" if options.jit else "no_jit")

    return {f"--{name.replace('_', '-')}" for name in given}


def write_options(options: CaptureOptions) -> tuple[str, ...]:
    """Return the user's options besides mode and card that change the need, as words."""
    words = []

    for name, shape in options.shapes.items():
        axes = ",".join(map(str, shape))
        words += ["--shape", f"{name}={axes}" if name else axes]

    for name in ("batch_size", "optimizer", "loss", "dtype_policy", "inter_op_threads"):
        value = getattr(options, name)
        if value:
            words += [f"--{name.replace('_', '-')}", str(value)]

    if options.jit is not None:
        words.append("--jit" if options.jit else "--no-jit")

    return tuple(words)


def check_honoured(name: str, form: TargetForm, options: CaptureOptions) -> None:
    """Raise InputError, once per reason, for given options that a form of target cannot honour."""
    given = _list_given(options)
    for reason, names in _TABLE["forms"][form].items():
        refused = [one for one in names if one in given]
        if not refused:
            continue

        because, hint = _TABLE["reasons"][reason]
        if len(refused) > 1:
            hint = hint.replace("it out", "them out", 1)

        raise InputError(
            f"{name} is {form}: {' and '.join(refused)} cannot be used, because {because}.",
            hint,
            kind=FailureKind.FIXED_SIZE if _BATCH_SIZE in refused else None,
        )
