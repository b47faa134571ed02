"""Write remedies as edits of the user's source, if the file has exactly one place for each edit."""

import ast
import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from analyzer.fitting.remedy_plans import RemedyPlan, read_remedies
from analyzer.model.errors import InputError

_T = TypeVar("_T")
_KEPT: Final = (
    "learning_rate",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
)
"""Arguments that a replaced optimizer keeps; every optimizer has them."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MODEL: Final = re.compile(r"\bmodel\b")


def edit_source(
    text: str, target: str, plans: Sequence[RemedyPlan], batch_size: int
) -> str:
    """Return the text of a file with remedies; InputError if it has no single place for one.

    ``target`` is the name of the model's function, ``batch_size`` the batch without the remedies.
    """
    source = SourceFile(text)
    for plan in plans:
        _apply(source, plan, target, batch_size)
    if not source.keras and source.text != text:
        source.insert_after_imports("import keras")
    return source.text


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name
    old, new = _LINE.findall(before), _LINE.findall(after)
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    end = "\n\\ No newline at end of file\n"
    return "".join(line if line.endswith("\n") else line + end for line in lines)


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
        self.calls = [
            node for node in ast.walk(self.tree) if isinstance(node, ast.Call)
        ]
        body = self.tree.body
        self._imports = [
            one for one in body if isinstance(one, (ast.Import, ast.ImportFrom))
        ]
        names = {
            one.name: one.asname or one.name
            for node in self._imports
            for one in node.names
        }
        own = f"{names['tensorflow']}.keras" if "tensorflow" in names else ""
        self.keras = names.get("keras", own)

    def find_calls(self, *names: str) -> list[ast.Call]:
        """Return the calls of functions or methods with one of these last names."""
        return [
            one
            for one in self.calls
            if ast.unparse(one.func).rpartition(".")[2] in names
        ]

    def find_compile(self) -> list[ast.Call]:
        """Return the calls of ``model.compile``."""
        return [
            one
            for one in self.find_calls("compile")
            if ast.unparse(one.func) != "re.compile"
        ]

    def replace(self, node: ast.AST, new: str) -> None:
        """Replace a node."""
        first, end = self._span(node)
        self._set_text(self.text[:first] + new + self.text[end:])

    def set_keyword(self, call: ast.Call, name: str, value: str) -> None:
        """Set an argument of a call."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return self.replace(keyword.value, value)
        ends = [self._span(one) for one in (*call.args, *call.keywords)]
        first, end = max(ends, default=(0, self._span(call)[1] - 1))
        margin = self._margin(first)
        comma = "" if not ends else ", " if margin.strip() else f",\n{margin}"
        return self._set_text(
            f"{self.text[:end]}{comma}{name}={value}{self.text[end:]}"
        )

    def insert_before(self, place: ast.AST, code: str) -> None:
        """Insert lines before the line of a statement, at its depth."""
        first, _ = self._span(place)
        margin = self._margin(first)
        if margin.strip():
            raise InputError(
                f"Line {getattr(place, 'lineno', 0)} holds several statements."
            )
        start = first - len(margin)
        lines = "".join(
            f"{margin}{line}\n" if line else "\n" for line in code.splitlines()
        )
        self._set_text(self.text[:start] + lines + self.text[start:])

    def insert_after_imports(self, code: str) -> None:
        """Insert lines after the imports of the file."""
        count = self._imports[-1].end_lineno if self._imports else 0
        lines = [*self._lines[:count], f"{code}\n", *self._lines[count:]]
        self._set_text("".join(lines))

    def wrap_body(self, function: ast.FunctionDef, header: str) -> None:
        """Put the body of a function under a ``with``."""
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if not body or body[0].lineno == function.lineno:
            raise InputError(f"The body of {function.name} is one line.")
        first, last = body[0].lineno, function.end_lineno
        kinds = (ast.Constant, ast.JoinedStr)
        texts = [one for one in ast.walk(function) if isinstance(one, kinds)]
        inside = {  # lines of texts, whose spaces are theirs
            n for one in texts for n in range(one.lineno + 1, (one.end_lineno or 0) + 1)
        }
        lines = [
            f"    {line}" if line.strip() and number not in inside else line
            for number, line in enumerate(self._lines[first - 1 : last], first)
        ]
        margin = self._margin(self._span(body[0])[0])
        parts = [
            *self._lines[: first - 1],
            f"{margin}{header}\n",
            *lines,
            *self._lines[last:],
        ]
        self._set_text("".join(parts))

    def segment(self, node: ast.AST) -> str:
        """Return the text of a node."""
        return ast.get_source_segment(self.text, node) or ""

    def _span(self, node: Any) -> tuple[int, int]:
        """Return the first position of a node and the one after it; ``ast`` counts bytes."""
        places = (
            (node.lineno, node.col_offset),
            (node.end_lineno, node.end_col_offset),
        )
        first, end = (
            sum(map(len, self._lines[: line - 1]))
            + len(self._lines[line - 1].encode()[:column].decode())
            for line, column in places
        )
        return first, end

    def _margin(self, position: int) -> str:
        """Return the text from the start of the line to a position."""
        return self.text[self.text.rfind("\n", 0, position) + 1 : position]


def _apply(source: SourceFile, plan: RemedyPlan, target: str, batch_size: int) -> None:
    """Edit a file for a remedy."""
    function = [one for one in source.tree.body if getattr(one, "name", "") == target]
    if plan.kind == "input":
        raise InputError("The sizes of the inputs come from --shape.")
    if plan.batch_size:
        _set_batch(source, plan, batch_size)
    if plan.dtype_policy:
        _set_policy(source, plan.dtype_policy)
    elif plan.before:
        made = _get_only(
            [one for one in function if isinstance(one, ast.FunctionDef)],
            f"function {target}",
        )
        header = plan.before.strip().splitlines()[0]
        source.wrap_body(
            made, header.replace("keras.", f"{source.keras or 'keras'}.", 1)
        )
    if plan.jit is not None:
        _set_jit(source, str(plan.jit))
    if plan.model:
        helper, _, call = plan.model.strip("\n").rpartition("\n\n\n")
        _change_model(source, function, call)
        if helper:
            source.insert_after_imports(f"\n{helper}\n")
    if plan.is_other:
        place, _ = _find_optimizer(source)
        kept = [
            f"learning_rate={source.segment(one)}"
            for one in getattr(place, "args", [])[:1]
        ]
        kept += [
            source.segment(one)
            for one in getattr(place, "keywords", [])
            if one.arg in _KEPT
        ]
        source.replace(place, _make_optimizer(source, plan.optimizer, ", ".join(kept)))
    call = ast.parse(f"f({plan.optimizer_option})").body[0].value  # type: ignore[attr-defined]
    for option in call.keywords:
        place, name = _find_optimizer(source)
        if not isinstance(place, ast.Call):
            source.replace(place, _make_optimizer(source, name, ""))
            place, _ = _find_optimizer(source)
        assert isinstance(place, ast.Call)
        source.set_keyword(place, option.arg, ast.unparse(option.value))


def _set_batch(source: SourceFile, plan: RemedyPlan, before: int) -> None:
    """Change the batch size in the file, if it is the one of the estimate."""
    places = [
        one.value
        for call in source.calls
        for one in call.keywords
        if one.arg == "batch_size"
    ]
    places += [call.args[0] for call in source.find_calls("batch") if call.args]
    if not places and plan.optimizer_option:
        return  # the rest of the remedy is in the file
    for number, place in enumerate(places):
        values = [
            one.value
            for one in source.tree.body
            if isinstance(one, ast.Assign)
            and source.segment(place) in map(ast.unparse, one.targets)
        ]
        places[number] = values[0] if len(values) == 1 else place
    value = _get_only(list(dict.fromkeys(places)), "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        raise InputError(
            f"The file sets a batch of {source.segment(value)}, not of {before}."
        )
    source.replace(value, plan.batch_size)


def _set_policy(source: SourceFile, policy: str) -> None:
    if calls := source.find_calls("set_dtype_policy", "set_global_policy"):
        source.replace(_get_only(calls, "dtype policy").args[0], f'"{policy}"')
    else:
        keras = source.keras or "import keras\n\nkeras"
        source.insert_after_imports(f'\n{keras}.config.set_dtype_policy("{policy}")')


def _set_jit(source: SourceFile, value: str) -> None:
    """Set ``jit_compile`` where the model is compiled, or of the only ``tf.function``."""
    if calls := source.find_compile():
        return source.set_keyword(
            _get_only(calls, "compile() call"), "jit_compile", value
        )
    nodes = [one for one in ast.walk(source.tree) if isinstance(one, ast.Attribute)]
    place = _get_only(
        [one for one in nodes if ast.unparse(one) == "tf.function"], "tf.function"
    )
    for call in source.calls:
        if call.func is place:
            return source.set_keyword(call, "jit_compile", value)
    return source.replace(place, f"tf.function(jit_compile={value})")


def _change_model(source: SourceFile, function: Sequence[ast.AST], code: str) -> None:
    """Insert code for the model before it is compiled, or returned by the function."""
    if calls := source.find_compile():
        place: Any = _get_only(calls, "compile() call")
        model = getattr(place.func, "value", None)
    else:
        nodes = [node for one in function for node in ast.walk(one)]
        place = _get_only(
            [one for one in nodes if isinstance(one, ast.Return)], "return"
        )
        model = place.value
    if not isinstance(model, ast.Name):
        raise InputError("The model has no name in the file.")
    source.insert_before(place, _MODEL.sub(model.id, code))


def _find_optimizer(source: SourceFile) -> tuple[ast.expr, str]:
    """Return the place that makes the optimizer, a call or a text, and the optimizer's class."""
    classes = {name.lower(): name for name in read_remedies().all_optimizers}
    places: list[tuple[ast.expr, str]] = [
        (one, name) for name in classes.values() for one in source.find_calls(name)
    ]
    for call in source.find_compile():
        given = [
            one.value for one in call.keywords if one.arg == "optimizer"
        ] or call.args[:1]
        names = [(one, str(getattr(one, "value", "")).lower()) for one in given]
        places += [(one, classes[name]) for one, name in names if name in classes]
    return _get_only(places, "optimizer")


def _make_optimizer(source: SourceFile, name: str, arguments: str) -> str:
    return f"{source.keras or 'keras'}.optimizers.{name}({arguments})"


def _get_only(places: Sequence[_T], what: str) -> _T:
    """Return the only place; InputError if there is none or a choice."""
    if len(places) != 1:
        raise InputError(
            f"The file has {len(places) or 'no'} {what}{'s' * (len(places) > 1)}."
        )
    return places[0]
