"""Write remedies as edits of the user's source, if the file has exactly one place for each edit.

Edits of arguments can be written: batch size, dtype policy, XLA, the optimizer and its options.
"""

import ast
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from analyzer.fitting.remedy_plans import RemedyPlan
from analyzer.model.errors import InputError

_T = TypeVar("_T")
_KEPT: Final = {
    *("learning_rate", "weight_decay"),
    *("clipnorm", "clipvalue", "global_clipnorm"),
}
"""Arguments that a replaced optimizer keeps; every optimizer has them."""
_OPTIMIZERS: Final = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl"),
    *("Lamb", "Lion", "Nadam", "RMSprop", "SGD"),
)
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")


def edit_source(text: str, plans: Sequence[RemedyPlan], batch_size: int) -> str:
    """Return the text of a file with remedies; InputError if it has no single place for one.

    ``batch_size`` is the batch without the remedies.
    """
    source = SourceFile(text)
    for plan in plans:
        if plan.model:
            raise InputError("This change is not one of arguments.")
        if plan.batch_size:
            _set_batch(source, plan, batch_size)
        if plan.dtype_policy:
            _set_policy(source, plan.dtype_policy)
        if plan.jit is not None:
            _set_jit(source, str(plan.jit))
        if plan.is_other or plan.optimizer_option:
            _set_optimizer(source, plan)

    if not source.keras and source.text != text:
        source.insert_after_imports("import keras")
    return source.text


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name
    old, new = _LINE.findall(before), _LINE.findall(after)
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
    """A Python file that is edited by the positions of its syntax tree.

    ``keras`` is the name of Keras in the file; empty if the file does not import it.
    """

    def __init__(self, text: str) -> None:
        self._set_text(text)

    def _set_text(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self._lines = _LINE.findall(text)
        nodes = list(ast.walk(self.tree))
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        names: dict[str, str] = {}
        self._last_import = 0

        for node in self.tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._last_import = node.end_lineno or node.lineno
                names |= {one.name: one.asname or one.name for one in node.names}

        own = f"{names['tensorflow']}.keras" if "tensorflow" in names else ""
        self.keras = names.get("keras", own)

    def find_calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions or methods with one of these last names."""
        found = []
        for call in self.calls:
            name = ast.unparse(call.func)
            if name.rpartition(".")[2] in names and name != "re.compile":
                found.append(call)

        return found

    def replace(self, node: ast.AST, new: str) -> None:
        """Replace a node."""
        first, end = self._span(node)
        self._set_text(self.text[:first] + new + self.text[end:])

    def set_keyword(self, call: ast.Call, name: str, value: str) -> None:
        """Set an argument of a call."""
        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        for keyword in call.keywords:
            if keyword.arg == name:
                self.replace(keyword.value, value)
                return

        if arguments:
            last = arguments[-1]
            self.replace(last, f"{self.segment(last)}, {name}={value}")
        else:
            self.replace(call, f"{self.segment(call.func)}({name}={value})")

    def insert_after_imports(self, code: str) -> None:
        """Insert lines after the imports of the file."""
        count = self._last_import
        lines = [*self._lines[:count], f"{code}\n", *self._lines[count:]]
        self._set_text("".join(lines))

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return ast.get_source_segment(self.text, node) or ""

    def _span(self, node: Any) -> tuple[int, int]:
        """Return the first position of a node and the one after it; ``ast`` counts bytes."""
        places = []
        for line, column in (
            (node.lineno, node.col_offset),
            (node.end_lineno, node.end_col_offset),
        ):
            before = sum(map(len, self._lines[: line - 1]))
            inside = self._lines[line - 1].encode()[:column].decode()
            places.append(before + len(inside))

        return places[0], places[1]


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

    values = dict.fromkeys(assigned.get(source.segment(one), one) for one in places)
    value = _get_only(list(values), "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        text = source.segment(value)
        raise InputError(f"The file sets a batch of {text}, not of {before}.")

    source.replace(value, plan.batch_size)


def _set_policy(source: SourceFile, policy: str) -> None:
    if calls := source.find_calls("set_dtype_policy", "set_global_policy"):
        source.replace(_get_only(calls, "dtype policy").args[0], f'"{policy}"')
    else:
        keras = source.keras or "import keras\n\nkeras"
        source.insert_after_imports(f'\n{keras}.config.set_dtype_policy("{policy}")')


def _set_jit(source: SourceFile, value: str) -> None:
    """Set ``jit_compile`` where the model is compiled, or of the only ``tf.function``."""
    if calls := source.find_calls("compile"):
        call = _get_only(calls, "compile() call")
        source.set_keyword(call, "jit_compile", value)
        return

    nodes = [one for one in ast.walk(source.tree) if isinstance(one, ast.Attribute)]
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
    maker = f"{source.keras or 'keras'}.optimizers.{name}"
    arguments: dict[str, str] = {}

    if isinstance(place, ast.Call):
        maker = source.segment(place.func)
        for value in place.args[:1]:
            arguments["learning_rate"] = source.segment(value)

        for keyword in place.keywords:
            is_kept = not plan.is_other or keyword.arg in _KEPT
            if keyword.arg and is_kept:
                arguments[keyword.arg] = source.segment(keyword.value)

    if plan.is_other:
        maker = f"{source.keras or 'keras'}.optimizers.{plan.optimizer}"

    options: Any = ast.parse(f"f({plan.optimizer_option})", mode="eval").body
    for option in options.keywords:
        arguments[option.arg] = ast.unparse(option.value)

    texts = [f"{key}={value}" for key, value in arguments.items()]
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
