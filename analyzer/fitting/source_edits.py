"""Edits of a user's source: a remedy, or the line of a finding's cause.

A remedy needs exactly one place in the file. Edits of one argument can be written: batch size, dtype
policy, XLA, the optimizer of ``compile``.
"""

import ast
import difflib
import os
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from analyzer.fitting.remedy_plans import RemedyPlan
from analyzer.model.errors import InputError

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def edit_source(text: str, plan: RemedyPlan, batch_size: int) -> str:
    """Return the text of a file with a remedy; InputError if it has no single place for it.

    ``batch_size`` is the batch without the remedy.
    """
    tree = ast.parse(text)
    if plan.model or plan.optimizer_option:
        raise InputError("This change is not one of an argument.")

    if plan.dtype_policy:
        return _set_policy(text, tree, plan.dtype_policy)
    if plan.batch_size:
        return _splice(text, _find_batch(tree, batch_size), plan.batch_size)

    name = "optimizer"
    value = f'"{plan.optimizer.lower()}"'

    if plan.jit is not None:
        name = "jit_compile"
        value = str(plan.jit)

    return _set_keyword(text, tree, name, value)


def write_diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff for the working folder, or for the file's own if it lies elsewhere."""
    name = Path(os.path.relpath(path)).as_posix()
    name = path.name if name.startswith("..") else name

    end = "\n\\ No newline at end of file\n"
    lines = difflib.unified_diff(
        _LINE.findall(before), _LINE.findall(after), f"a/{name}", f"b/{name}"
    )

    return "".join(line if line.endswith("\n") else line + end for line in lines)


def _splice(text: str, node: Any, new: str) -> str:
    """Replace a node of the syntax tree, which counts bytes."""
    data = text.encode()
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]

    first = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset

    return (data[:first] + new.encode() + data[end:]).decode()


def _find_calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    """Return the calls of functions or methods with one of these last names."""
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.rpartition(".")[2] in names and name != "re.compile":
                calls.append(node)

    return calls


def _find_batch(tree: ast.Module, before: int) -> ast.expr:
    """Return the only number that sets the batch size, which must be that of the estimate."""
    assigned = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            assigned[ast.unparse(statement.targets[0])] = statement.value

    places = [call.args[0] for call in _find_calls(tree, "batch") if call.args]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "batch_size":
            places.append(node.value)

    values = list(dict.fromkeys(assigned.get(ast.unparse(one), one) for one in places))

    value = _get_only(values, "batch size")
    if not isinstance(value, ast.Constant) or value.value != before:
        text = ast.unparse(value)
        raise InputError(f"The file sets a batch of {text}, not of {before}.")

    return value


def _set_policy(text: str, tree: ast.Module, policy: str) -> str:
    calls = _find_calls(tree, "set_dtype_policy", "set_global_policy")
    if calls:
        values = [call.args[0] for call in calls if call.args]
        return _splice(text, _get_only(values, "dtype policy"), f'"{policy}"')

    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
    end = max((one.end_lineno or 0 for one in imports), default=0)
    lines = text.splitlines(keepends=True)
    code = f'\nimport keras\n\nkeras.config.set_dtype_policy("{policy}")\n'

    return "".join((*lines[:end], code, *lines[end:]))


def _set_keyword(text: str, tree: ast.Module, name: str, value: str) -> str:
    """Set an argument where the model is compiled."""
    call = _get_only(_find_calls(tree, "compile"), "compile() call")
    for keyword in call.keywords:
        if keyword.arg == name:
            return _splice(text, keyword.value, value)

    if call.args or not call.keywords:
        raise InputError("The arguments of compile() have no names.")

    last = call.keywords[-1]

    return _splice(text, last, f"{ast.get_source_segment(text, last)}, {name}={value}")


def _get_only(places: list[Any], what: str) -> Any:
    """Return the only place; InputError if there is none or a choice."""
    if len(places) != 1:
        plural = "s" * (len(places) > 1)
        raise InputError(f"The file has {len(places) or 'no'} {what}{plural}.")

    return places[0]


def _add_axes(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Yield each operand of a sum, difference or call with a further last axis."""
    operands = []

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


# Cause -> parts of an expression and their new text.
_EDITS = {"outer-product": _add_axes, "reduced-at-once": _contract}


def edit_line(text: str, name: str, number: int) -> list[str]:
    """Return the texts of a file with each edit of a line that mends a finding's cause."""
    find_edits = _EDITS.get(name)
    if find_edits is None:
        return []

    edits = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.expr):
            continue

        if node.lineno == node.end_lineno == number:
            edits += [_splice(text, part, new) for part, new in find_edits(node)]

    return edits
