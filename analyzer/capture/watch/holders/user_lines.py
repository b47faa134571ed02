"""Lines of the user's code: the calling line, and statements that make a container grow.

Needs no TensorFlow.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from analyzer.capture.run.source_frames import is_library, shorten_path

_PUTS: Final = frozenset(
    {"append", "extend", "insert", "add", "appendleft", "setdefault", "update"}
    | {"put", "put_nowait", "push"}
)
"""Methods that make lists, sets, dictionaries, deques and queues grow."""


_TAKES: Final = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait"})
"""Methods that remove entries of containers."""


def find_calling_line() -> str:
    """Return ``file:line`` of the innermost line of the user's code on the stack, or ""."""
    found = find_calling_frame(inspect.currentframe())
    return "" if found is None else f"{shorten_path(found.f_code.co_filename)}:{found.f_lineno}"


def find_calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code from ``frame`` on, or None."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Return whether a file of code is the user's."""
    return not is_library(filename)


def get_code(function: Any) -> CodeType | None:
    """Return the code of a function without its decorators; None if it has none."""
    function = getattr(function, "func", function)  # functools.partial
    try:
        function = inspect.unwrap(function)
    except ValueError:  # a circle
        return None
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None


def format_code_line(code: CodeType) -> str:
    """Return ``file:line`` of the definition of code."""
    return f"{shorten_path(code.co_filename)}:{code.co_firstlineno}"


def find_growing_lines(
    filename: str, name: str, scope: str = "", keys: frozenset[Any] = frozenset()
) -> list[int]:
    """Return the lines that add something to the container ``name``, the likely ones first.

    Such as ``name.append(…)``, ``name[…] = …`` or ``name = name + …``, also as an attribute:
    ``self.name.append(…)``. Lines with one of ``keys`` come first (``name["outputs"].append(…)``), lines
    that add a number last (``name.append(float(…))``).
    """
    tree = _parse_file(filename)
    if tree is None:
        return []
    inner = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == scope
    ]
    for root in (*inner, tree):
        ranks: dict[int, tuple[bool, bool]] = {}
        for node in ast.walk(root):
            put = _find_put(node, name)
            if put is not None:
                rank = (not _list_keys(put.owner) & keys, _is_number(put.value))
                line: int = node.lineno  # type: ignore[attr-defined]
                ranks[line] = min(rank, ranks.get(line, rank))
        if ranks:
            return sorted(ranks, key=lambda line: (ranks[line], line))
    return []


def removes_entries(filename: str, name: str) -> bool:
    """Return whether a statement removes entries of the container ``name``."""
    tree = _parse_file(filename)
    return tree is not None and any(_is_removal(node, name) for node in ast.walk(tree))


def _is_removal(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _TAKES:
            return _get_name(owner) == name
        case ast.Delete(targets=targets):
            return any(isinstance(t, ast.Subscript) and _get_name(t) == name for t in targets)
        case ast.Assign(targets=[target], value=ast.Subscript(value=owner, slice=ast.Slice())):
            return _get_name(target) == name == _get_name(owner)
    return False


def find_binding_lines(filename: str, name: str) -> list[int]:
    """Return the lines that bind or define ``name`` or such an attribute, those in loops first."""
    tree = _parse_file(filename)
    if tree is None:
        return []
    lines = _find_bindings(tree, name) | {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    }
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    repeated = {line for loop in loops for line in _find_bindings(loop, name)}
    return sorted(lines, key=lambda line: (line not in repeated, line))


def _find_bindings(root: ast.AST, name: str) -> set[int]:
    return {
        part.lineno
        for node in ast.walk(root)
        for target in _list_targets(node)
        for part in ast.walk(target)
        if isinstance(part, ast.expr) and _get_name(part) == name
    }


def _list_targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets that a statement binds."""
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() | ast.For():
            return [node.target]
        case ast.withitem(optional_vars=ast.expr() as target):
            return [target]
    return []


@dataclass(frozen=True)
class _Put:
    """A statement that adds something to a container."""

    owner: ast.expr  # of the container
    value: ast.expr | None  # the added value; None if there are several


def _find_put(node: ast.AST, name: str) -> _Put | None:
    """Return the addition of a statement to the container ``name``; None if it adds nothing."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args) if method in _PUTS:
            return _Put(owner, args[-1] if args else None) if _get_name(owner) == name else None
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Subscript) and _get_name(target.value) == name:
                    return _Put(target, value)
                if _get_name(target) == name and _adds_to(value, name):
                    return _Put(target, value)
        case ast.AugAssign(target=ast.Subscript(value=owner) as target, value=value):
            return _Put(target, value) if _get_name(owner) == name else None
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return _Put(target, value) if _get_name(target) == name else None
    return None


def _adds_to(value: ast.expr, name: str) -> bool:
    """Return whether a value extends ``name``: ``name + …``, ``(*name, …)``, ``{**name}``."""
    match value:
        case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
            return name in (_get_name(left), _get_name(right))
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(isinstance(one, ast.Starred) and _is_whole(one.value, name) for one in parts)
        case ast.Dict(keys=keys, values=values):
            unpacked = [one for key, one in zip(keys, values, strict=True) if key is None]
            return any(_is_whole(one, name) for one in unpacked)
    return False


def _is_whole(node: ast.expr, name: str) -> bool:
    """Return whether an expression is all of ``name``, not a part of it."""
    return isinstance(node, ast.Name | ast.Attribute) and _get_name(node) == name


def _list_keys(node: ast.expr) -> set[Any]:
    """Return the constant keys in an expression such as ``a["b"].c[…]``."""
    keys = set()
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            keys.add(node.slice.value)
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            keys.add(node.args[0].value)  # table.setdefault("b", [])
        node = node.func if isinstance(node, ast.Call) else node.value
    return keys


def _is_number(value: ast.expr | None) -> bool:
    """Return whether an expression gives a Python number or text."""
    match value:
        case ast.Constant():
            return True
        case ast.Call(func=ast.Name(id="float" | "int" | "bool" | "str" | "len" | "repr")):
            return True
        case ast.Call(func=ast.Attribute(attr="item")) | ast.JoinedStr():
            return True
    return False


def _get_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.c``, ``c[…]`` or ``c.setdefault(…)``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=owner):
            return _get_name(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr="setdefault" | "get")):
            return _get_name(owner)
    return ""


@lru_cache(maxsize=64)
def _parse_file(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
