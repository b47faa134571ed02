"""Write remedies as edits of the user's source, if the file has exactly one place for each edit.

Edits of arguments can be written: batch size, dtype policy, XLA, the optimizer and its options.

The line of a finding's cause is edited too, and the step runs again. A line may be mended in several
ways, such as at either operand of a subtraction, and each of them is run. A cause without such an edit
has to be mended by hand.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from analyzer.fitting.remedy_plans import RemedyPlan
from analyzer.fitting.step_access import StepEstimate, estimate_step
from analyzer.model.contract.report_file import Finding
from analyzer.model.errors import InputError

if TYPE_CHECKING:
    from analyzer.fitting.remedies import RemedyTrial


_T = TypeVar("_T")
_KEPT: Final = [
    "learning_rate",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
]
"""Arguments that a replaced optimizer keeps; every optimizer has them."""

_OPTIMIZERS: Final = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "Ftrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "SGD",
]
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


def edit_source(text: str, plans: Sequence[RemedyPlan], batch_size: int) -> str:
    """Return the text of a file with remedies; InputError if it has no single place for one.

    ``batch_size`` is the batch without the remedies.
    """
    for plan in plans:
        if plan.model:
            raise InputError("This change is not one of arguments.")

        source = SourceFile(text)
        if plan.batch_size:
            _set_batch(source, plan, batch_size)
        if plan.dtype_policy:
            _set_policy(source, plan.dtype_policy)
        if plan.jit is not None:
            _set_jit(source, str(plan.jit))
        if plan.is_other or plan.optimizer_option:
            _set_optimizer(source, plan)

        text = source.make_text()

    return text


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name
    old = _LINE.findall(before)
    new = _LINE.findall(after)
    end = "\n\\ No newline at end of file\n"
    parts = []

    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        parts.append(line if line.endswith("\n") else line + end)

    return "".join(parts)


def copy_with_text(path: Path, text: str, folder: Path) -> Path:
    """Write ``text`` under the file's name into a new folder, beside links to its neighbours."""
    folder.mkdir(parents=True)
    for other in path.resolve().parent.iterdir():
        if other.name not in (path.name, "__pycache__"):
            (folder / other.name).symlink_to(other)

    (folder / path.name).write_bytes(text.encode())

    return folder / path.name


class SourceFile:
    """A Python file, and the edits of it by the positions of its syntax tree."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()  # the tree counts bytes
        lines = self._data.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, lines))]
        self._edits: list[tuple[int, int, str]] = []
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]

        names: dict[str, str] = {}
        self._last_import = 0

        for node in self.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._last_import = node.end_lineno or node.lineno
                names |= {one.name: one.asname or one.name for one in node.names}

        own = f"{names['tensorflow']}.keras" if "tensorflow" in names else ""
        self._keras = names.get("keras", own)

    def get_keras(self) -> str:
        """Return the name of Keras in the file, which then imports it."""
        if not self._keras:
            self._keras = "keras"
            self.insert_after_imports("import keras\n")

        return self._keras

    def find_calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of functions or methods with one of these last names."""
        for call in self.calls:
            name = ast.unparse(call.func)
            if name.rpartition(".")[2] in names and name != "re.compile":
                yield call

    def replace(self, node: Any, new: str) -> None:
        """Replace a node."""
        self._edits.append((*self._span(node), new))

    def set_keyword(self, call: ast.Call, name: str, value: str) -> None:
        """Set an argument of a call."""
        for keyword in call.keywords:
            if keyword.arg == name:
                self.replace(keyword.value, value)
                return

        end = self._span(call)[1] - 1  # before the bracket
        comma = ""

        for argument in (*call.args, *call.keywords):
            end = self._span(argument)[1]
            comma = ", "

        self._edits.append((end, end, f"{comma}{name}={value}"))

    def insert_after_imports(self, code: str) -> None:
        """Insert lines after the imports of the file."""
        place = self._starts[self._last_import]
        self._edits.append((place, place, code))

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node."""
        first, end = self._span(node)
        return self._data[first:end].decode()

    def make_text(self) -> str:
        """Return the text with all edits."""
        parts: list[bytes] = []
        done = 0

        for first, end, new in sorted(self._edits, key=lambda edit: edit[:2]):
            parts += [self._data[done:first], new.encode()]
            done = end

        parts.append(self._data[done:])

        return b"".join(parts).decode()

    def _span(self, node: Any) -> tuple[int, int]:
        """Return the first byte of a node and the one after it."""
        first = self._starts[node.lineno - 1] + node.col_offset
        return first, self._starts[node.end_lineno - 1] + node.end_col_offset


def _set_batch(source: SourceFile, plan: RemedyPlan, before: int) -> None:
    """Change the batch size in the file, if it is the one of the estimate."""
    places: list[ast.expr] = []
    for call in source.calls:
        places += [one.value for one in call.keywords if one.arg == "batch_size"]

    places += [call.args[0] for call in source.find_calls("batch") if call.args]
    if not places and plan.optimizer_option:
        return  # the rest of the remedy is in the file

    assigned: dict[str, ast.expr] = {}
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign):
            assigned[ast.unparse(statement.targets[0])] = statement.value

    values = dict.fromkeys(assigned.get(ast.unparse(one), one) for one in places)
    value = _get_only(list(values), "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        text = source.segment(value)
        raise InputError(f"The file sets a batch of {text}, not of {before}.")

    source.replace(value, plan.batch_size)


def _set_policy(source: SourceFile, policy: str) -> None:
    calls = list(source.find_calls("set_dtype_policy", "set_global_policy"))
    if calls:
        source.replace(_get_only(calls, "dtype policy").args[0], f'"{policy}"')
        return

    keras = source.get_keras()
    source.insert_after_imports(f'\n{keras}.config.set_dtype_policy("{policy}")\n')


def _set_jit(source: SourceFile, value: str) -> None:
    """Set ``jit_compile`` where the model is compiled, or of the only ``tf.function``."""
    calls = list(source.find_calls("compile"))
    if calls:
        call = _get_only(calls, "compile() call")
        source.set_keyword(call, "jit_compile", value)

        return

    nodes = [one for one in source.nodes if isinstance(one, ast.Attribute)]
    found = [one for one in nodes if ast.unparse(one) == "tf.function"]
    place = _get_only(found, "tf.function")

    for call in source.calls:
        if call.func is place:
            source.set_keyword(call, "jit_compile", value)
            return

    source.replace(place, f"tf.function(jit_compile={value})")


def _set_optimizer(source: SourceFile, plan: RemedyPlan) -> None:
    """Replace the optimizer, or set options of it."""
    place, name = _find_optimizer(source)
    arguments: dict[str, str] = {}
    maker = ""

    if isinstance(place, ast.Call):
        maker = source.segment(place.func)
        for value in place.args[:1]:
            arguments["learning_rate"] = source.segment(value)

        for keyword in place.keywords:
            is_kept = not plan.is_other or keyword.arg in _KEPT
            if keyword.arg and is_kept:
                arguments[keyword.arg] = source.segment(keyword.value)

    if plan.is_other or not maker:
        name = plan.optimizer if plan.is_other else name
        maker = f"{source.get_keras()}.optimizers.{name}"

    texts = [f"{key}={value}" for key, value in arguments.items()]
    texts += filter(None, [plan.optimizer_option])
    source.replace(place, f"{maker}({', '.join(texts)})")


def _find_optimizer(source: SourceFile) -> tuple[ast.expr, str]:
    """Return the place that makes the optimizer, a call or a text, and the optimizer's class."""
    classes = {name.lower(): name for name in _OPTIMIZERS}
    places: list[tuple[ast.expr, str]] = []

    for name in classes.values():
        places += [(call, name) for call in source.find_calls(name)]

    for call in source.find_calls("compile"):
        named = [one.value for one in call.keywords if one.arg == "optimizer"]
        for given in named or call.args[:1]:
            text = str(getattr(given, "value", "")).lower()
            if text in classes:
                places.append((given, classes[text]))

    return _get_only(places, "optimizer")


def _get_only(places: Sequence[_T], what: str) -> _T:
    """Return the only place; InputError if there is none or a choice."""
    if len(places) != 1:
        plural = "s" * (len(places) > 1)
        raise InputError(f"The file has {len(places) or 'no'} {what}{plural}.")

    return places[0]


_PLACE: Final = re.compile(r"\(([^()\s]+):(\d+)\)$")
_MOST_EDITS: Final = 6  # runs for one cause


def run_edits(
    trial: RemedyTrial,
    finding: Finding,
    file: Path,
) -> Iterator[tuple[StepEstimate, str]]:
    """Yield the estimate of each edit of a cause's line that runs, and the edit as a diff."""
    place = _PLACE.search(finding.title)
    make = trial.access.capture_file
    if place is None or make is None or Path(place[1]).name != file.name:
        return
    if finding.id not in _EDITS:
        return

    text = file.read_text("utf-8")
    number = int(place[2])
    lines = text.splitlines(keepends=True)
    edits = list(_edit_line(text, number, finding.id))

    for count, line in enumerate(edits[:_MOST_EDITS]):
        edited = "".join((*lines[: number - 1], line, *lines[number:]))
        folder = trial.access.folder / f"{finding.id}-{number}-{count}"
        copy = copy_with_text(file, edited, folder / "source")

        access = replace(
            trial.access,
            capture=lambda *given, copy=copy: make(copy, *given),
        )

        try:
            after = estimate_step(access, trial.options, f"{folder.name}/run")
        except InputError:  # the edited step does not run
            continue

        yield after, write_diff(file, text, edited)


def _edit_line(text: str, number: int, cause: str) -> Iterator[str]:
    """Yield a line of a file with each edit for a cause; a node over several lines has none."""
    line = text.splitlines(keepends=True)[number - 1]

    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.expr):
            continue
        if (node.lineno, node.end_lineno) != (number, number):
            continue

        for part, new in _EDITS[cause](node):
            first = part.col_offset
            end = part.end_col_offset
            data = line.encode()
            yield (data[:first] + new.encode() + data[end:]).decode()


def _add_axes(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield each operand of a sum, difference or call with a further last axis."""
    operands: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, ast.Call):
        operands = node.args

    for operand in operands:
        if isinstance(operand, (ast.Name, ast.Attribute, ast.Subscript)):
            yield operand, f"{ast.unparse(operand)}[:, None]"


def _contract(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield a product of matrices as a contraction of one axis."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        factors = f"{ast.unparse(node.left)}, {ast.unparse(node.right)}"
        yield node, f"tf.tensordot({factors}, 1)"

    if isinstance(node, ast.Call) and len(node.args) == 2:
        module, _, name = ast.unparse(node.func).rpartition(".")
        if name == "matmul" and not node.keywords:
            factors = ", ".join(map(ast.unparse, node.args))
            yield node, f"{module.removesuffix('.linalg')}.tensordot({factors}, 1)"


_EDITS: Final = {"outer-product": _add_axes, "reduced-at-once": _contract}
"""Cause -> parts of an expression and their new text."""
