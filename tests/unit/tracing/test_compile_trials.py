"""What XLA tries while it compiles: the requests of TensorFlow's own autotuner on a phantom card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.simulate.compiler.step_plans import unpack_plan
from analyzer.tracing.parse.hlo import Hlo, HloProto, read_hlo
from analyzer.tracing.xla.compile_trials import GUARD_BYTES, find_trials

DATA = Path(__file__).parent / "data"
A100, T4, H100 = (8, 0), (7, 5), (9, 0)
FLOAT = 11


def plan() -> Hlo:
    return read_hlo(unpack_plan((DATA / "half-a100.plan.gz").read_bytes()).hlo)


def module(
    *inner: dict[str, object], opcode: str = "fusion", target: str = "", **rest: object
) -> Hlo:
    """Return a module of one call; ``inner`` are a fusion's instructions, numbered from 1."""
    proto = HloProto()
    proto.hlo_module.entry_computation_id = 2
    fused = proto.hlo_module.computations.add(id=1, root_id=len(inner) or 1)
    for number, one in enumerate(inner or ({"opcode": b"parameter"},), start=1):
        shape = {"element_type": FLOAT, "dimensions": one.get("dims", [64, 32])}
        kept = {key: value for key, value in one.items() if key != "dims"}
        fused.instructions.add(id=number, name=f"i{number}".encode(), shape=shape, **kept)
    entry = proto.hlo_module.computations.add(id=2, root_id=101)
    shape = {"element_type": FLOAT, "dimensions": [64, 32]}
    entry.instructions.add(id=100, name=b"p", opcode=b"parameter", shape=shape)
    entry.instructions.add(
        id=101,
        name=b"call",
        opcode=opcode.encode(),
        custom_call_target=target.encode(),
        operand_ids=[100],
        called_computation_ids=[1] if opcode == "fusion" else [],
        shape=shape,
        **rest,
    )
    return read_hlo(proto.SerializeToString())


def test_what_is_tried_is_what_the_autotuner_asked_a_phantom_card_for() -> None:
    # GIVEN what TensorFlow asked for while it compiled a step, and the step's plan
    asked = {tuple(sizes) for sizes in json.loads((DATA / "half-a100-tried.json").read_text())}
    # WHEN the plan is asked for its trials
    told = {trial.operands_bytes for trial in find_trials(plan(), A100)}
    # THEN they are those, each of them and no other
    assert told == asked


def test_without_triton_no_fusion_is_tried() -> None:
    fewer = find_trials(plan(), T4)
    assert set(fewer) < set(find_trials(plan(), A100))


def test_a_convolution_is_tried_on_any_card() -> None:
    hlo = module(opcode="custom-call", target="__cudnn$convForward")
    (trial,) = find_trials(hlo, T4)
    assert trial.operands_bytes == (64 * 32 * 4 + 2 * GUARD_BYTES,)
    assert (trial.results_bytes, trial.scratch_bytes) == ((64 * 32 * 4,), 0)


def test_a_product_has_its_operands_bytes_as_workspace_up_to_a_limit() -> None:
    hlo = module(opcode="custom-call", target="__cublas$gemm")
    assert find_trials(hlo, T4)[0].scratch_bytes == 64 * 32 * 4


@pytest.mark.parametrize(
    ("middle", "count"),
    [
        ([{"opcode": b"negate", "operand_ids": [1]}], 0),  # neither moved nor summed
        ([{"opcode": b"transpose", "operand_ids": [1], "dims": [32, 64]}], 1),
        ([{"opcode": b"pad", "operand_ids": [1]}, {"opcode": b"transpose", "operand_ids": [2]}], 0),
    ],
)
def test_a_fusion_is_tried_where_triton_can_write_it(
    middle: list[dict[str, object]], count: int
) -> None:
    assert len(find_trials(module({"opcode": b"parameter"}, *middle), A100)) == count


@pytest.mark.parametrize(("axis", "count"), [(0, 0), (1, 1)])
def test_a_sum_over_axes_that_were_joined_has_one_way(axis: int, count: int) -> None:
    # GIVEN (8, 8, 32) reshaped to (64, 32): the first axis was made of two, the second was one before
    inner = [
        {"opcode": b"parameter", "dims": [8, 8, 32]},
        {"opcode": b"bitcast", "operand_ids": [1], "dims": [64, 32]},
        {"opcode": b"constant", "dims": []},
        {
            "opcode": b"reduce",
            "operand_ids": [2, 3],
            "dimensions": [axis],
            "dims": [[32], [64]][axis],
        },
    ]
    assert len(find_trials(module(*inner), H100)) == count
