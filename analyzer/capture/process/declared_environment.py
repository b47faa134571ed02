"""Environment variables that a target's file sets for TensorFlow, found without running it.

TensorFlow and Keras read theirs when they are imported, which in a capture's process happens before the
target's file runs (``TF_USE_LEGACY_KERAS`` decides which Keras ``tf.keras`` is). A file that sets them
above its imports, as their guides say, would be read too late.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from analyzer.model.contract.capture_request import TargetKind, TargetSpec

_PREFIX: Final = "TF_"
_OURS: Final = ("TF_CPU_", "TF_CPP_")
"""Prefixes of those that choose the allocator and what is logged: the capture's own business."""


def declared_environment(spec: TargetSpec, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the top level of a target's file sets to a text, by name.

    Args:
        spec: The target; of one that is not Python's source nothing is known.
        given: The environment that the file finds, in which a default is not set once more.
    """
    if spec.kind not in (TargetKind.FILE, TargetKind.MODULE):
        return {}
    try:
        tree = ast.parse(Path(spec.source).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}  # loading the target says what is wrong with it
    found: dict[str, str] = {}
    for name, value, is_default in _settings(tree):
        is_theirs = name.startswith(_PREFIX) and not name.startswith(_OURS)
        if is_theirs and not (is_default and name in {*given, *found}):
            found[name] = value
    return found


def _settings(tree: ast.Module) -> Iterator[tuple[str, str, bool]]:
    """Yield name, value and whether it is only a default, of each setting at the top level."""
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Subscript(value=where, slice=ast.Constant(value=str(name)))],
                value=ast.Constant(value=str(value)),
            ) if _is_environment(where):
                yield name, value, False
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=where, attr="setdefault"),
                    args=[ast.Constant(value=str(name)), ast.Constant(value=str(value))],
                )
            ) if _is_environment(where):
                yield name, value, True


def _is_environment(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ") | ast.Name(id="environ"):
            return True
    return False
