"""Edit the line of a cause and run the step again.

A line may be mended in several ways, such as at either operand of a subtraction, and each of them is
run. A cause without such an edit has to be mended by hand.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analyzer.fitting.source_patches import copy_with_text, write_diff
from analyzer.fitting.step_access import StepEstimate, estimate_step
from analyzer.model.contract.report_file import Finding
from analyzer.model.errors import InputError

if TYPE_CHECKING:
    from analyzer.fitting.remedies import RemedyTrial

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
