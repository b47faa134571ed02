"""Steps that XLA compiles: what is compiled at any batch, from two, and when it cannot be told."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_module_forms import module

from analyzer.cards import find_gpu
from analyzer.fitting.scaling.size_lines import LimitRange, SizeNeed
from analyzer.fitting.scaling.size_search import SizeSearch
from analyzer.fitting.scaling.step_family import NotOneFamily, family_of
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.model.contract.run_note import DeviceNote, StepConfig, VariableNote
from analyzer.model.errors import InputError
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote

T4 = find_gpu("t4")
MIB = 1 << 20


def note(folder: Path, size: int, *, extra: int = 0) -> RunNote:
    """A step that is one compiled function, whose number differs in each capture."""
    file = folder / f"{size}.hlo.pb.gz"
    file.write_bytes(gzip.compress(module(size, extra=extra)))
    function = f"__inference_step_{1000 + size}"
    ops = (
        Op(name="x", type="_Arg", outputs=(TensorSpec("float32", (size, 8)),), attrs={"index": 0}),
        Op(
            name="step",
            type="StatefulPartitionedCall",
            inputs=("x:0",),
            outputs=(TensorSpec("float32", ()),),
            attrs={"f": {"function": function}, "_XlaMustCompile": True},
        ),
    )
    return RunNote(
        kind="static",
        ops=ops,
        device=DeviceNote(kind="gpu", name=T4.name, id=T4.id),
        step=StepConfig(mode="train", jit=True, batch_size=size),
        variables=(
            VariableNote(path="w", category="parameter", dtype="float32", shape=(MIB // 4,)),
        ),
        compiled=(
            CompiledNote(ops=("step",), function=function, platform="cpu", module=file, plan=None),
        ),
    )


class Compiler:
    """Stands for captures and the card's compiler: 1 MiB of variables and so much for each size."""

    def __init__(self, folder: Path, each_bytes: int = MIB, odd_from: int = 10**9) -> None:
        self.folder, self.each_bytes, self.odd_from = folder, each_bytes, odd_from
        self.captured: list[int] = []
        self.made: list[int] = []

    def note(self, size: int) -> RunNote:
        self.captured.append(size)
        return note(self.folder, size, extra=int(size >= self.odd_from))

    def need(self, size: int) -> SizeNeed:
        need = MIB + size * self.each_bytes
        return SizeNeed(
            low_bytes=need, bytes=need, high_bytes=need, requested_bytes=need, allocated_bytes=need
        )

    def need_made(self, size: int, made: RunNote, modules: Any) -> SizeNeed:
        assert made.step.batch_size == size
        forms = family_of({n: note(self.folder, n) for n in (3, 8)})
        forms.check(size, replace(made, compiled=note(self.folder, size).compiled))
        self.made.append(size)
        return self.need(size)


def found(compiler: Compiler, limit_mib: int, *, runs_follow: bool = False) -> Any:
    limit = limit_mib * MIB
    limits = LimitRange(bytes=limit, low_bytes=limit, high_bytes=limit)
    return SizeSearch(
        compiler, lambda target: limits, 32, runs_follow=runs_follow, report=lambda *_: None
    ).find()


def test_two_captures_and_a_few_plans_find_the_largest(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path)
    answer = found(compiler, 501, runs_follow=True)
    assert answer.sizes.size == 500
    assert answer.sizes.safe == int(501 / 1.03 - 1)
    assert len(compiler.captured) == 2
    assert len(compiler.made) <= 3
    assert answer.forms.is_closed_form


def test_without_a_run_to_come_the_size_found_is_captured_and_compared(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, each_bytes=MIB + 4096)
    answer = found(compiler, 501)
    assert answer.sizes.size in compiler.captured
    assert set(answer.forms.checked_at) <= {answer.sizes.size}


def test_a_module_of_another_kind_is_captured_at_each_size(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, odd_from=100)
    answer = found(compiler, 501)
    assert answer.sizes.size == 500
    assert not answer.forms.is_closed_form
    assert "what XLA compiles" in answer.forms.why_not
    assert compiler.made == []


def test_plans_that_came_with_a_capture_are_no_family(tmp_path: Path) -> None:
    notes = {n: note(tmp_path, n) for n in (3, 8)}
    on_cpu = {n: replace(one, device=DeviceNote(kind="cpu")) for n, one in notes.items()}
    with pytest.raises(NotOneFamily, match="anew at each size"):
        family_of(on_cpu)


def test_a_step_that_needs_no_more_with_a_larger_batch_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no more memory"):
        found(Compiler(tmp_path, each_bytes=0), 501)
