"""What the values inside a compiled step are for."""

from __future__ import annotations

from dataclasses import replace

from analyzer.model.choice import Category
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.tracing.xla.buffer_plan import Holder, PlanRegion, ValueUse
from analyzer.tracing.xla.plan_contents import label_holders

MIB = 1 << 20
VALUE = TensorSpec("float32", (MIB // 4,))
OPS = [
    Op("net/first", "Relu", inputs=("x:0",), outputs=(VALUE,)),
    Op("net/second", "Relu", inputs=("net/first:0",), outputs=(VALUE,)),
    Op("gradient_tape/net/mask", "ZerosLike", inputs=("net/first:0",), outputs=(VALUE,)),
    Op(
        "gradient_tape/net/second",
        "ReluGrad",
        inputs=("net/second:0", "gradient_tape/net/mask:0"),
        outputs=(VALUE,),
    ),
    Op("gradient_tape/net/first", "Mul", inputs=("gradient_tape/net/second:0",), outputs=(VALUE,)),
]


def holder(name: str, first: int, last: int, size_bytes: int = MIB) -> Holder:
    return Holder(
        size_bytes=size_bytes,
        offset_bytes=0,
        first=first,
        last=last,
        until=last,
        instruction=f"fusion.{first}",
        opcode="fusion",
        op_name=name,
        op_type="",
        dtype="float32",
        shape=(size_bytes // 4,),
    )


def labels(*holders: Holder, infer: bool = False) -> list[Category]:
    region = PlanRegion(
        index=0,
        size_bytes=16 * MIB,
        use=ValueUse.TEMPORARY,
        results=(),
        is_live_out=False,
        is_tuple=False,
        dtype="",
        shape=None,
        op_name="",
        holders=holders,
        moments=20,
    )
    structure = build_graph_index(OPS, gradients=["gradient_tape/net/first:0"])
    return [Category(label["category"]) for label in label_holders(region, structure, infer=infer)]


def test_a_mask_of_the_backward_pass_made_early_does_not_begin_it() -> None:
    # GIVEN a step whose compiler makes the backward pass's mask among the forward values
    found = labels(
        holder("gradient_tape/net/mask", 0, 12),
        holder("net/first", 1, 3),
        holder("net/second", 2, 11),
        holder("net/second", 4, 12),
        holder("gradient_tape/net/second", 10, 15),
        holder("gradient_tape/net/second", 11, 14, 2 * MIB),
        holder("gradient_tape/net/first", 13, 20),
    )
    # THEN all that waits for the backward pass is an activation, the mask too
    assert found == [
        Category.ACTIVATION,
        Category.ACTIVATION,
        Category.ACTIVATION,
        Category.ACTIVATION,
        Category.GRADIENT,
        Category.GRADIENT,
        Category.GRADIENT,
    ]


def test_inference_has_no_backward_pass() -> None:
    assert labels(holder("net/first", 0, 2), holder("net/second", 1, 3), infer=True) == [
        Category.ACTIVATION,
        Category.ACTIVATION,
    ]


def test_a_table_of_addresses_is_no_activation() -> None:
    table = replace(holder("net/first", 0, 2, 16), dtype="tuple", shape=None)
    assert labels(table, infer=True) == [Category.TEMPORARY]
