"""Lines of the user's own code: who calls, and which statements put something into a container.

Needs no TensorFlow.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from analyzer.capture.run.source_frames import is_library, shown

_PUTS: Final = frozenset(
    {"append", "extend", "insert", "add", "appendleft", "setdefault", "update"}
    | {"put", "put_nowait", "push"}
)
"""Methods by which lists, sets, dictionaries, deques and queues grow."""


def calling_line() -> str:
    """Return ``file:line`` of the innermost line of the user's own code on the stack, or empty."""
    found = calling_frame(inspect.currentframe())
    return "" if found is None else f"{shown(found.f_code.co_filename)}:{found.f_lineno}"


def calling_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's own code from ``frame`` on, or None."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Say whether a file of code is the user's own."""
    return not is_library(filename)


def code_of(function: Any) -> CodeType | None:
    """Return the code of a function under its decorators; None where it has none."""
    function = getattr(function, "func", function)  # functools.partial
    try:
        function = inspect.unwrap(function)
    except ValueError:  # a circle
        return None
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        code = getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None


def line_of_code(code: CodeType) -> str:
    """Return ``file:line`` where code is defined."""
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def putting_lines(filename: str, name: str, scope: str = "") -> list[int]:
    """Return the lines of a file that put something into what ``name`` is bound to.

    ``name.append(…)``, ``name[…] = …``, ``name += …`` and the like, at the end of any chain of
    attributes: ``self.kept.append``.

    Args:
        filename: The file of code.
        name: The variable or attribute.
        scope: Name of the function to look in first; empty for the whole file.
    """
    tree = _tree(filename)
    if tree is None:
        return []
    inner = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == scope
    ]
    for root in (*inner, tree):
        lines = sorted({node.lineno for node in ast.walk(root) if _puts(node, name)})  # type: ignore[attr-defined]
        if lines:
            return lines
    return []


def binding_lines(filename: str, name: str) -> list[int]:
    """Return the lines of a file that bind, or define, ``name`` or an attribute of that name."""
    tree = _tree(filename)
    if tree is None:
        return []
    return sorted(
        {
            part.lineno
            for node in ast.walk(tree)
            for target in _bound(node)
            for part in ast.walk(target)
            if isinstance(part, ast.expr) and _named(part) == name
        }
        | {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        }
    )


def _bound(node: ast.AST) -> list[ast.expr]:
    """Return what a statement binds."""
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() | ast.For():
            return [node.target]
        case ast.withitem(optional_vars=ast.expr() as target):
            return [target]
    return []


def _puts(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _PUTS:
            return _named(owner) == name
        case ast.Assign(targets=targets):
            return any(isinstance(t, ast.Subscript) and _named(t.value) == name for t in targets)
        case ast.AugAssign(target=ast.Subscript(value=owner)):
            return _named(owner) == name
        case ast.AugAssign(target=target, op=ast.Add()):
            return _named(target) == name
    return False


def _named(node: ast.AST) -> str:
    """Return the last name of ``a.b.c`` or ``c[…]``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=owner):
            return _named(owner)
    return ""


@lru_cache(maxsize=64)
def _tree(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
