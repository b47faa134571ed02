"""Give matrix products for which XLA cannot generate a Triton kernel to cuBLAS, one by one.

On a card XLA tries several kernels for each product, drops failing kernels, and uses cuBLAS if all
fail. Without a card it takes its first kernel for each product, and refuses the whole module if one
fails; the error names the product. XLA never uses Triton for a product with more than the default
precision (``CanTritonHandleGEMM``, ``triton_support_legacy.cc``). The memory that cuBLAS needs does not
depend on the precision. So raising the precision of a product moves it to cuBLAS.
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
"""The fields of ``HloModuleProto`` (``xla/service/hlo.proto``) that are read or changed; all others stay
unchanged."""

_HIGHEST: Final = 2
"""``PrecisionConfig.HIGHEST`` (``xla/xla_data.proto``)."""

_OP_NAME: Final = re.compile(r'\bop_name="([^"]*)"')


def find_op_names(refusal: str) -> frozenset[str]:
    """Return the framework's op names in an error message of the compiler."""
    return frozenset(_OP_NAME.findall(refusal))


def without_triton(module: bytes, ops: Iterable[str]) -> bytes | None:
    """Return the module with some products moved from Triton to cuBLAS.

    Products with the same shapes move also: they are repeated layers.

    Returns:
        None if no product with such a name is left to Triton.
    """
    proto = _Module()
    try:
        proto.ParseFromString(module)
    except DecodeError:
        return None
    wanted = {name.encode() for name in ops}
    shapes = {one.id: _shape(one) for part in proto.computations for one in part.instructions}
    products = [
        one
        for part in proto.computations
        for one in part.instructions
        if one.opcode == b"dot" and _HIGHEST not in one.precision.operand_precision
    ]

    def kind(one: Any) -> tuple[Any, ...]:
        return _shape(one), *(shapes.get(number) for number in one.operand_ids)

    kinds = {kind(one) for one in products if one.metadata.op_name in wanted}
    if not kinds:
        return None
    for one in products:
        if kind(one) in kinds:
            one.precision.operand_precision[:] = [_HIGHEST, _HIGHEST]
    return bytes(proto.SerializeToString())


def _shape(one: Any) -> tuple[int, ...]:
    return one.shape.element_type, *one.shape.dimensions
