"""What the user named and how it is to be run, decided before TensorFlow is imported.

A target is told from its text alone:

    keras:ResNet50                an application of keras.applications, without weights
    train.py:build, pkg.mod:step  a name in a file or a module
    model.keras, model.h5         a saved Keras model
    saved/                        a SavedModel folder
    logdir/, run/, x.xplane.pb    a trace: opened, not captured
    train.py                      a script, where the command runs scripts
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from analyzer.model.contract.capture_request import CaptureOptions, TargetKind, TargetSpec
from analyzer.model.contract.phantom_assumptions import ASSUMPTIONS
from analyzer.model.contract.run_note import MOST_STEPS
from analyzer.model.errors import TargetError
from analyzer.model.units import format_bytes, parse_bytes
from analyzer.tracing.parse.logdir import is_trace

_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FORMS = (
    "Give keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
    "folder, a logdir or an .xplane.pb."
)
OPTIMIZER: Final = "adam"


def check_steps(options: CaptureOptions) -> None:
    """Refuse more steps than are predicted: each is played from the start, a few times over.

    Raises:
        TargetError: there are too many, or none.
    """
    if not 1 <= options.step_count <= MOST_STEPS:
        raise TargetError(
            f"{options.step_count} steps cannot be predicted.",
            hint=f"Give 1 to {MOST_STEPS}; a few show all that repeats.",
        )


def parse_target(text: str, *, scripts: bool = False) -> TargetSpec:
    """Tell which form of target ``text`` is.

    Args:
        text: What the user wrote.
        scripts: A file of Python without a name in it is a script to be run; else it is refused.

    Raises:
        TargetError: it is none, or the file that it names does not exist.
    """
    if text.startswith("keras:"):
        name = text.removeprefix("keras:")
        if not name.isidentifier():
            raise TargetError(f"{text!r} names no application.", hint="Write it as keras:ResNet50.")
        return TargetSpec(text=text, kind=TargetKind.APPLICATION, path="keras", attribute=name)
    path = Path(text)
    if text and path.exists():
        return _existing(text, path, scripts=scripts)
    base, colon, attribute = text.rpartition(":")
    if colon and base.endswith(".py"):
        if not Path(base).is_file():
            raise TargetError(f"There is no file {base}.", hint="Check the path before the colon.")
        _check_attribute(text, attribute)
        return TargetSpec(text=text, kind=TargetKind.FILE, path=base, attribute=attribute)
    if colon and _MODULE_NAME.fullmatch(base):
        _check_attribute(text, attribute)
        return TargetSpec(text=text, kind=TargetKind.MODULE, path=base, attribute=attribute)
    raise TargetError(f"There is no {text}." if text else "The target is empty.", hint=_FORMS)


def _check_attribute(text: str, attribute: str) -> None:
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise TargetError(
            f"{text!r} has no name after the colon.", hint="Write it as file.py:name."
        )


def _existing(text: str, path: Path, *, scripts: bool) -> TargetSpec:
    if path.is_dir():
        if (path / "saved_model.pb").is_file() or (path / "saved_model.pbtxt").is_file():
            return TargetSpec(text=text, kind=TargetKind.SAVED_MODEL, path=text)
        return TargetSpec(text=text, kind=TargetKind.TRACE, path=text)
    if path.suffix == ".py" and scripts:
        return TargetSpec(text=text, kind=TargetKind.SCRIPT, path=text)
    if path.suffix == ".py":
        raise TargetError(
            f"{text} is a script, and no name in it is given.",
            hint=f"Name the model or the step in it: {text}:name. A whole script is run by "
            f"`analyze trace {text}`.",
        )
    if path.suffix in (".keras", ".h5", ".hdf5"):
        return TargetSpec(text=text, kind=TargetKind.KERAS_FILE, path=text)
    if is_trace(path):
        return TargetSpec(text=text, kind=TargetKind.TRACE, path=text)
    raise TargetError(f"{text} is no model and no trace.", hint=_FORMS)


def parse_assumptions(texts: list[str]) -> dict[str, int]:
    """Return numbers by name from ``NAME=N``: trips of loops, sizes, branches.

    Raises:
        TargetError: a text is written otherwise.
    """
    assumed: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name.strip() or not number.strip().isdecimal() or len(number.strip()) > 9:
            raise TargetError(
                f"{text!r} assumes nothing.",
                hint="Write it as --assume NAME=N, with the name that the estimate says.",
            )
        assumed[name.strip()] = int(number)
    return assumed


def parse_card_assumptions(texts: list[str]) -> dict[str, int]:
    """Return what is assumed of a card that is not there, from ``workspace=64MiB``.

    Raises:
        InputError: a text is written otherwise, or more is assumed than TensorFlow would accept.
    """
    known = {one.name: one for one in ASSUMPTIONS}
    assumed: dict[str, int] = {}
    for text in texts:
        name, _, value = (part.strip() for part in text.rpartition("="))
        if name not in known:
            raise TargetError(
                f"{text!r} assumes nothing of a card.",
                hint=f"Write it as --assume NAME=N, with one of {', '.join(known)}.",
            )
        one = known[name]
        plain = value.isdecimal() and len(value) <= 15
        assumed[name] = int(value) if plain else parse_bytes(value) if one.is_bytes else -1
        if not 0 <= assumed[name] <= one.most:
            most = format_bytes(one.most) if one.is_bytes else str(one.most)
            raise TargetError(f"{text!r}: from 0 to {most} can be assumed.", hint=f"{one.source}.")
    return assumed


def parse_shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return axes by input name from ``NAME=224,224,3`` or, for the only input, ``224,224,3``.

    Raises:
        TargetError: a text is written otherwise.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, axes = text.rpartition("=")
        try:
            shape = tuple(int(axis) for axis in axes.split(",") if axis.strip())
        except ValueError:
            shape = ()
        if not shape and axes.strip() not in ("", "()"):
            raise TargetError(
                f"{text!r} is not a shape.", hint="Write it as --shape NAME=224,224,3."
            )
        if any(axis < 1 for axis in shape):
            raise TargetError(f"{text!r} has an axis below 1.", hint="Axes are counted from 1.")
        shapes[name.strip()] = shape
    return shapes
