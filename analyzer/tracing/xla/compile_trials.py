"""Requests of XLA's autotuner while it compiles a module for a card.

The autotuner takes products, convolutions and fusions out of the module, compiles each in every known
way (algorithms of cuBLAS and cuDNN, tilings of Triton) and runs them on the card (``AutotunerPass``;
``GpuProfiler`` in ``xla/backends/gpu/autotuner/``). Guards around each operand detect writes outside of
it (``RedzoneBuffers``). The first result is kept and compared with each further one (``check_buffers``).
Equal instructions are tried once; an instruction with one way is not. All of it is freed before the
module runs, so that only the first step requests it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analyzer.model.contract.graph_note import read_op_types
from analyzer.model.graph.reachability import reach
from analyzer.tracing.parse.hlo import Hlo, Instruction

GUARD_BYTES: Final = 8 << 20
"""Bytes before and after each operand (``xla_gpu_redzone_padding_bytes``)."""

_TRITON_FROM: Final = (8, 0)
"""Minimum compute capability of Triton (``EnsureTritonSupportsComputeCapability``); without Triton a
fusion has one way."""
_HOPPER: Final = (9, 0)
_WORKSPACE_BYTES: Final = {False: 4 << 20, True: 32 << 20}
"""Whether it is Hopper -> upper bound of cuBLAS' workspace, which is at most the operands' size
(``GemmWorkspaceRewriteVisitor`` in ``gemm_rewriter.cc``)."""
CONVOLUTION: Final = "__cudnn$conv"
_PRODUCT: Final = "__cublas$"
_NOT_IN_TRITON: Final = read_op_types("tracing/xla/not_in_triton.toml")["triton"]

_CUSTOM: Final = "kCustom"
_MOVES: Final = frozenset({"transpose", "bitcast", "reshape", "broadcast", "slice"})


@dataclass(frozen=True, slots=True)
class CompileTrial:
    """One instruction that is tried during compilation."""

    operands_bytes: tuple[int, ...]  # bytes of each operand with its guards
    # bytes of each part of the result; requested twice, because the first is kept
    results_bytes: tuple[int, ...]
    scratch_bytes: (
        int  # workspace, and operands that are computed before a product; 0 for none
    )


def find_trials(hlo: Hlo, capability: tuple[int, int]) -> tuple[CompileTrial, ...]:
    """Return the trials of a compiled module; ``capability`` is the card's compute capability."""
    members: dict[int, list[Instruction]] = {}
    for one in hlo.instructions.values():
        members.setdefault(one.computation, []).append(one)
    fusions = [one for one in hlo.instructions.values() if one.opcode == "fusion"]
    inside = {called for one in fusions for called in one.calls}
    calls: list[CompileTrial] = []
    others: list[CompileTrial] = []

    for one in hlo.instructions.values():
        if one.computation in inside:
            continue
        operands = [
            size for at in one.operands for size in hlo.instructions[at].array_bytes
        ]
        results, scratch, found = one.array_bytes, 0, calls
        workspace = min(_WORKSPACE_BYTES[capability >= _HOPPER], sum(operands))

        if one.opcode == "custom-call" and one.target.startswith(_PRODUCT):
            results, scratch = (
                results[:1],
                workspace,
            )  # its second part is its workspace
        elif one.opcode == "fusion" and capability >= _TRITON_FROM:
            body = list(_body(members, one))
            opcodes = {part.opcode for part in body}

            if "dot" in opcodes:
                is_plain = opcodes <= {"parameter", "dot", "fusion", "bitcast"}
                scratch = workspace + (0 if is_plain else sum(operands))
            elif _has_two_ways(hlo, one, body, opcodes):
                found = others
            else:
                continue
        elif one.opcode != "custom-call" or not one.target.startswith(CONVOLUTION):
            continue

        guarded = tuple(size + 2 * GUARD_BYTES for size in operands)
        found.append(CompileTrial(guarded, tuple(filter(None, results)), scratch))

    return tuple(dict.fromkeys((*calls, *others)))


def _has_two_ways(
    hlo: Hlo, fusion: Instruction, body: Sequence[Instruction], opcodes: set[str]
) -> bool:
    """Say whether both XLA's own emitter and Triton can compute a fusion.

    XLA asks for fusions with a transposition or a reduction (``ShouldAutotuneBetweenFusionEmitters``).
    Triton's fusions have one way already, except transpositions that a compiler without a card gave to
    it. One of several results must be computed from all others without moving elements, and a reduced
    axis must not be one that a reshape joined: otherwise the search for a tiling fails
    (``TryFindTopKBestTilingsForFusion``, ``SymbolicTileAnalysis``).
    """
    dtypes = {dtype for part in body for dtype, _ in part.shapes.values()}
    if opcodes & _NOT_IN_TRITON["opcodes"] or dtypes & _NOT_IN_TRITON["dtypes"]:
        return False
    if not opcodes & (
        {"transpose"} if fusion.fusion_kind == _CUSTOM else {"reduce", "transpose"}
    ):
        return False

    for part in body:  # ``CanTritonHandleReduce``
        if part.opcode == "reduce" and (
            len(part.axes) != 1 or len(part.operands) != 2 or _reduces_joined(hlo, part)
        ):
            return False

    root = hlo.instructions[hlo.roots[fusion.calls[0]]]

    def find_sources(
        number: int,
    ) -> tuple[int, ...]:  # of a value that is computed by element
        one = hlo.instructions[number]
        return () if one.opcode in _MOVES else one.operands

    return root.opcode != "tuple" or any(
        reach([last], find_sources).issuperset(root.operands)
        for last in set(root.operands)
    )


def _reduces_joined(hlo: Hlo, reduction: Instruction) -> bool:
    """Say whether a reduced axis comes from a reshape that joined or split axes."""
    queue = [(reduction.operands[0], frozenset(reduction.axes))]
    seen = set(queue)

    while queue:
        number, axes = queue.pop()
        one = hlo.instructions[number]
        shape = one.shape

        for operand in one.operands:
            before = hlo.instructions[operand].shape
            onto = axes

            if one.opcode in ("bitcast", "reshape"):
                if before != shape and sorted(before) == sorted(shape):
                    continue  # another order of the same axes
                found = _find_axes_before(before, shape, axes)
                if found is None:
                    return True
                onto = found
            elif before != shape:
                continue

            if (operand, onto) not in seen:
                seen.add((operand, onto))
                queue.append((operand, onto))

    return False


def _find_axes_before(
    before: tuple[int, ...], after: tuple[int, ...], axes: frozenset[int]
) -> frozenset[int] | None:
    """Return the axes of a reshaped value that become ``axes``; None if one is no axis of it."""
    places = {
        (math.prod(before[:axis]), size): axis
        for axis, size in enumerate(before)
        if size > 1
    }
    long = [axis for axis in axes if axis < len(after) and after[axis] != 1]
    found = [places.get((math.prod(after[:axis]), after[axis])) for axis in long]

    return (
        None if None in found else frozenset(axis for axis in found if axis is not None)
    )


def _body(
    members: Mapping[int, Sequence[Instruction]], fusion: Instruction
) -> Iterator[Instruction]:
    """Yield the instructions of a fusion and of nested fusions."""
    for called in fusion.calls:
        for part in members.get(called, ()):
            yield part
            if part.opcode == "fusion":
                yield from _body(members, part)
