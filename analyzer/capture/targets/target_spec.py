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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from analyzer.capture.targets.honoured_options import Option
from analyzer.choice import Choice
from analyzer.contract.phantom_assumptions import ASSUMPTIONS
from analyzer.contract.run_note import MOST_STEPS
from analyzer.errors import TargetError
from analyzer.parse.logdir import is_trace
from analyzer.units import format_bytes, parse_bytes

_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_FORMS = (
    "Give keras:NAME, file.py:name, package.module:name, a .keras or .h5 file, a SavedModel "
    "folder, a logdir or an .xplane.pb."
)
STEPS: Final = 3  # traced where the user names no number
BATCH_SIZE: Final = 32  # examples, where neither the user nor the target names a number
OPTIMIZER: Final = "adam"


class TargetKind(Choice):
    """The kinds of target."""

    APPLICATION = "application"
    FILE = "file"
    MODULE = "module"
    KERAS_FILE = "keras-file"
    SAVED_MODEL = "saved-model"
    TRACE = "trace"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """A target, told apart but not yet loaded.

    Attributes:
        text: What the user wrote.
        kind: Which form it is.
        path: The file or folder, or the module's dotted name.
        attribute: The name after the colon; empty where there is none.
    """

    text: str
    kind: TargetKind
    path: str
    attribute: str = ""

    @property
    def source(self) -> Path:
        """The file or folder that is read; of a module, where it lies in the working folder."""
        if self.kind is TargetKind.MODULE:
            return Path(*self.path.split(".")).with_suffix(".py")
        return Path(self.path)

    @property
    def name(self) -> str:
        """A short name for folders and headings."""
        stem = Path(self.path).name.split(".")[0] if self.path else ""
        return re.sub(r"[^\w.-]+", "_", self.attribute or stem or "model")[:60]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How the step is built and run; None or empty where the user left it open.

    Attributes:
        steps: Steps to trace; None means :data:`STEPS`.
        mode: ``train`` or ``infer``; empty means what the target is made for.
        batch_size: Size of the first axis where a spec leaves it open; None means
            :data:`BATCH_SIZE`.
        shapes: Axes of inputs by name; the key ``""`` stands for the only input.
        optimizer: Keras optimizer; empty means the compiled one, or :data:`OPTIMIZER`.
        loss: Keras loss; empty means the compiled one, or one that fits the output.
        jit: Compile with XLA; None means what the model or Keras chooses.
        dtype_policy: Keras dtype policy to build with; empty means Keras' own.
        inter_op_threads: Threads that run ops side by side; None means TensorFlow's choice.
        device: ``cpu``, ``gpu`` or empty for a GPU where there is one.
        gpu: The catalogue's name of a card that is not there: to predict for, or to trace on, where it
            may be several (``t4,t4`` or ``2xt4``); empty for the machine's own device.
        memory_limit_bytes: On such a card, or for a trace on a CPU: TensorFlow's limit, on a CPU in
            whole MiB; None for its own. The graph of an estimate is optimised for it.
        growth: The same: whether the pool grows as it is needed; None for no.
        cpu_plan: For an estimate with XLA for a card: compile for the CPU too, even where the card's
            own compiler is installed.
        assume: For an estimate: what is taken for what the data decide, by name: trips of a loop, the
            size of an op's result, the number of a branch. For a trace on a card that is not there: what
            is taken for what its libraries would say (:mod:`analyzer.contract.phantom_assumptions`).
        remedy: A change of the model that lowers its memory
            (:mod:`analyzer.capture.remedies.model_changes`); empty for none.
    """

    steps: int | None = None
    mode: str = ""
    batch_size: int | None = None
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    optimizer: str = ""
    loss: str = ""
    jit: bool | None = None
    dtype_policy: str = ""
    inter_op_threads: int | None = None
    device: str = ""
    gpu: str = ""
    memory_limit_bytes: int | None = None
    growth: bool | None = None
    cpu_plan: bool = False
    assume: dict[str, int] = field(default_factory=dict)
    remedy: str = ""

    @property
    def wanted_steps(self) -> int:
        """Steps to trace or to predict."""
        return STEPS if self.steps is None else self.steps

    @property
    def wanted_batch(self) -> int:
        """Size of a batch axis that is open."""
        return BATCH_SIZE if self.batch_size is None else self.batch_size

    @property
    def given(self) -> frozenset[Option]:
        """The options that the user gave."""
        asked = {
            Option.STEPS: self.steps is not None,
            Option.MODE: bool(self.mode),
            Option.BATCH_SIZE: self.batch_size is not None,
            Option.SHAPE: bool(self.shapes),
            Option.OPTIMIZER: bool(self.optimizer),
            Option.LOSS: bool(self.loss),
            Option.JIT: self.jit is True,
            Option.NO_JIT: self.jit is False,
            Option.DTYPE_POLICY: bool(self.dtype_policy),
            Option.INTER_OP_THREADS: self.inter_op_threads is not None,
            Option.DEVICE: bool(self.device),
        }
        return frozenset(option for option, is_given in asked.items() if is_given)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that :meth:`from_json` takes back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CaptureOptions:
        """Return the options that :meth:`to_json` wrote."""
        shapes = {name: tuple(shape) for name, shape in values.get("shapes", {}).items()}
        return cls(**{**values, "shapes": shapes})


def check_steps(options: CaptureOptions) -> None:
    """Refuse more steps than are predicted: each is played from the start, a few times over.

    Raises:
        TargetError: there are too many, or none.
    """
    if not 1 <= options.wanted_steps <= MOST_STEPS:
        raise TargetError(
            f"{options.wanted_steps} steps cannot be predicted.",
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
