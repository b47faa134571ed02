"""Matrix products that XLA cannot write with Triton, given to cuBLAS one by one.

With a card at hand XLA tries several kernels for each product, drops those that cannot be made, and
leaves a product of which none can be to cuBLAS. Without one it takes its first kernel for every product
and refuses the whole module where one of them cannot be made, naming that product. A product that asks
for more than the default precision is never written with Triton (``CanTritonHandleGEMM``,
``triton_support_legacy.cc``): what cuBLAS allocates for it does not depend on the precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from analyzer.tracing.parse.protobuf import message_class

_Module: Final = message_class(
    "analyzer.spared_products",
    {
        "Module": {"computations": (3, "Computation[]")},
        "Computation": {"instructions": (2, "Instruction[]")},
        "Instruction": {
            "opcode": (2, "bytes"),
            "shape": (3, "Shape"),
            "metadata": (7, "Metadata"),
            "id": (35, "int64"),
            "operand_ids": (36, "int64[]"),
            "precision": (51, "Precision"),
        },
        "Shape": {"element_type": (2, "int64"), "dimensions": (3, "int64[]")},
        "Metadata": {"op_name": (2, "bytes")},
        "Precision": {"operand_precision": (1, "int64[]")},
    },
    "Module",
)
"""The fields of ``HloModuleProto`` (``xla/service/hlo.proto``) that are looked at or changed; the
others are kept as they are."""

_HIGHEST: Final = 2
"""``PrecisionConfig.HIGHEST`` (``xla/xla_data.proto``)."""

_NAMED: Final = re.compile(r'\bop_name="([^"]*)"')


def ops_named(refusal: str) -> frozenset[str]:
    """Return the framework's names of the instructions that a compiler's message shows."""
    return frozenset(_NAMED.findall(refusal))


def without_triton(module: bytes, ops: Iterable[str]) -> bytes | None:
    """Return the module with some of its products left to cuBLAS.

    Products of the same shapes as one of those are left to it too: they are the same layer again.

    Args:
        module: A serialized ``HloModuleProto``, not optimised.
        ops: Names of the ops that the products were made of.

    Returns:
        None where no product of the module has such a name and may still be Triton's.
    """
    proto = _Module()
    try:
        proto.ParseFromString(module)
    except DecodeError:
        return None
    wanted = {name.encode() for name in ops}
    shapes = {one.id: _shape(one) for part in proto.computations for one in part.instructions}
    left = [
        one
        for part in proto.computations
        for one in part.instructions
        if one.opcode == b"dot" and _HIGHEST not in one.precision.operand_precision
    ]

    def kind(one: Any) -> tuple[Any, ...]:
        return _shape(one), *(shapes.get(number) for number in one.operand_ids)

    kinds = {kind(one) for one in left if one.metadata.op_name in wanted}
    if not kinds:
        return None
    for one in left:
        if kind(one) in kinds:
            one.precision.operand_precision[:] = [_HIGHEST, _HIGHEST]
    return bytes(proto.SerializeToString())


def _shape(one: Any) -> tuple[int, ...]:
    return one.shape.element_type, *one.shape.dimensions
