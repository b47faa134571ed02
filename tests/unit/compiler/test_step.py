"""A step's plans on a card: kept in the run folder, ranged, and replaced by the CPU's if need be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from analyzer.cards import find_gpu
from analyzer.model.contract.report.peak_figures import StatedRange
from analyzer.model.errors import AccountingError, CompilerUnavailable, TraceError
from analyzer.simulate.compiler import step_plans as step
from analyzer.simulate.compiler.card_options import CardOptions
from analyzer.simulate.compiler.compile_child import (
    CUBLAS_PRODUCTS,
    CardPlan,
    Compilation,
    CompilerRefused,
    check_plan,
)
from analyzer.simulate.compiler.plan_uncertainty import PlanDoubts, with_plan_doubts
from analyzer.simulate.compiler.step_plans import (
    CARD_FILE,
    card_step,
    cpu_step,
    keep_failure,
    pack_plan,
    unpack_plan,
)
from analyzer.tracing.parse.hlo import read_hlo
from analyzer.tracing.parse.run_folder import CompiledNote, RunNote

DATA = Path(__file__).parent / "data"
A100 = find_gpu("a100-80gb")


def a_plan(products: str) -> CardPlan:
    return check_plan(unpack_plan((DATA / f"mlp-a100-{products}.plan.gz").read_bytes()), A100)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the compiler answer with kept plans; return what it is asked for."""
    calls: list[str] = []

    def answer(module: bytes, how: Compilation) -> CardPlan:
        calls.append("cublas" if how.flags == CUBLAS_PRODUCTS else "triton")
        return a_plan(calls[-1])

    monkeypatch.setattr(step, "plan_for_card", answer)
    return calls


def a_note(folder: Path, *, with_cpu_plan: bool = False) -> RunNote:
    shutil.copy(DATA / "mlp.hlo.pb.gz", folder / "module.hlo.pb.gz")
    one = CompiledNote(
        ops=("call", "again"),
        function="f",
        platform="cpu",
        module_file=folder / "module.hlo.pb.gz",
        hlo=read_hlo(a_plan("triton").compiled.hlo) if with_cpu_plan else None,
    )
    return RunNote(compiled=(one,))


def ask(folder: Path, *, both: bool | None = None, **options: Any) -> step.CardStep:
    shares: list[float] = []
    found = card_step(
        a_note(folder),
        folder,
        options.pop("gpu", A100),
        options=CardOptions(both=both),
        progress=lambda stage, share: shares.append(share),
        **options,
    )
    assert shares == sorted(shares)
    return found


def test_the_users_flags_are_taken_over_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def answer(module: bytes, how: Compilation) -> CardPlan:
        asked.append(how.flags)
        return a_plan("triton")

    monkeypatch.setattr(step, "plan_for_card", answer)
    note = replace(a_note(tmp_path), environment={"XLA_FLAGS": "--xla_a=2"})
    found = card_step(note, tmp_path, A100, options=CardOptions(both=False))
    assert asked == [("--xla_a=2",)]
    assert "Compiled with the XLA_FLAGS of this environment: --xla_a=2" in found.doubts.because


def test_the_buffers_add_up_to_the_compilers_totals() -> None:
    found = a_plan("triton")
    told = found.compiled.head.statistics
    assert found.plan.temp_bytes == told.temp_bytes > 0
    statistics = replace(told, temp_bytes=told.temp_bytes + 1)
    wrong = replace(found.compiled, head=replace(found.compiled.head, statistics=statistics))
    with pytest.raises(AccountingError, match="temp_bytes"):
        check_plan(wrong, A100)


def test_both_products_make_a_range(tmp_path: Path, asked: list[str]) -> None:
    found = ask(tmp_path)
    assert asked == ["triton", "cublas"]
    assert found.plans["call"] is found.plans["again"]
    assert found.plans["call"].temp_bytes == a_plan("triton").plan.temp_bytes
    more = a_plan("cublas").plan.temp_bytes - a_plan("triton").plan.temp_bytes
    assert more > 0
    assert (found.doubts.low_bytes, found.doubts.high_bytes) == (0, more)
    assert any("cuBLAS" in sentence for sentence in found.doubts.because)


def test_one_product_is_enough_where_it_is_asked_for(tmp_path: Path, asked: list[str]) -> None:
    found = ask(tmp_path, both=False)
    assert asked == ["triton"]
    assert found.doubts.low_bytes == found.doubts.high_bytes > 0


def test_cublas_where_triton_cannot_be_had(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = step.plan_for_card

    def refuse_triton(module: bytes, how: Compilation) -> CardPlan:
        if how.flags != CUBLAS_PRODUCTS:
            raise CompilerRefused("XLA's compiler refused: too fragmented.")
        return answer(module, how)

    monkeypatch.setattr(step, "plan_for_card", refuse_triton)
    for both in (None, False):
        found = ask(tmp_path, both=both, keep=True)
        assert found.plans["call"].temp_bytes == a_plan("cublas").plan.temp_bytes
        assert any("cannot be compiled without the card" in said for said in found.doubts.because)
    assert ask(tmp_path).plans == found.plans
    with pytest.raises(CompilerUnavailable, match="fragmented"):
        ask(tmp_path, gpu=find_gpu("t4"))  # no Triton there: nothing else to try


def test_plans_in_the_folder_need_no_compiler(tmp_path: Path, asked: list[str]) -> None:
    first = ask(tmp_path, keep=True)
    asked.clear()
    again = ask(tmp_path, keep=True)
    assert not asked
    assert (again.plans, again.doubts, again.compiler) == (
        first.plans,
        first.doubts,
        first.compiler,
    )
    ask(tmp_path, gpu=find_gpu("t4"), both=False)
    assert asked == ["triton"]  # those of another card are not taken


def test_the_other_products_can_be_asked_for_later(tmp_path: Path, asked: list[str]) -> None:
    ask(tmp_path, both=False, keep=True)
    asked.clear()
    ask(tmp_path, both=True, keep=True)
    assert asked == ["triton", "cublas"]
    asked.clear()
    ask(tmp_path, both=True)
    assert not asked


def test_nothing_is_left_in_a_folder_that_is_only_opened(tmp_path: Path, asked: list[str]) -> None:
    ask(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["module.hlo.pb.gz"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"card": "a100-80gb-sxm"}',
        '{"card": "a100-80gb-sxm", "functions": [{"ops": ["call", "again"], '
        '"plans": {"triton": "../x"}}]}',
        '{"card": "a100-80gb-sxm", "functions": [{"ops": ["call", "again"], '
        '"plans": {"triton": "module.hlo.pb.gz"}}]}',
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path: Path, content: str) -> None:
    note = a_note(tmp_path)
    (tmp_path / CARD_FILE).write_text(content)
    with pytest.raises(TraceError) as caught:
        card_step(note, tmp_path, A100)
    assert "\n" not in str(caught.value)


def test_a_failure_is_remembered(tmp_path: Path, asked: list[str]) -> None:
    why = CompilerUnavailable("XLA's compiler died of SIGSEGV.", hint="Say so.")
    keep_failure(tmp_path, A100, why)
    assert json.loads((tmp_path / CARD_FILE).read_text())["failed"]["hint"] == "Say so."
    with pytest.raises(CompilerUnavailable, match="SIGSEGV"):
        ask(tmp_path)
    assert not asked


def test_the_cpus_plan_stands_in_and_says_so(tmp_path: Path) -> None:
    why = CompilerUnavailable("It is not installed.", hint="pip install it.")
    found = cpu_step(a_note(tmp_path, with_cpu_plan=True), A100, why)
    assert found is not None
    temp = found.plans["call"].temp_bytes
    assert found.doubts.low_bytes > temp // 2
    assert 0 < found.doubts.high_bytes < temp // 2
    (said,) = found.doubts.because
    assert "up to twice too high" in said
    assert "pip install it." in said
    assert cpu_step(a_note(tmp_path), A100, why) is None


def test_doubts_widen_the_range_they_are_added_to() -> None:
    base = StatedRange(
        limit_high_bytes=None,
        low_bytes=100,
        high_bytes=120,
        allocated_low_bytes=110,
        allocated_high_bytes=140,
        because=("one",),
        schedules=(),
        unsized=0,
    )
    doubts = PlanDoubts(low_bytes=105, high_bytes=7, because=("two",))
    assert with_plan_doubts(base, doubts) == structs.replace(
        base,
        low_bytes=0,
        high_bytes=127,
        allocated_low_bytes=5,
        allocated_high_bytes=147,
        because=("one", "two"),
    )


def test_a_plan_of_another_module_is_refused(tmp_path: Path) -> None:
    # GIVEN a folder with a plan that was compiled from another module than the folder's
    note = a_note(tmp_path)
    compiled = a_plan("triton").compiled
    foreign = replace(compiled, head=replace(compiled.head, module_sha256="0" * 64))
    (tmp_path / "card-0-triton.plan.gz").write_bytes(pack_plan(foreign))
    content = {
        "card": A100.id,
        "functions": [{"ops": ["call", "again"], "plans": {"triton": "card-0-triton.plan.gz"}}],
    }
    (tmp_path / CARD_FILE).write_text(json.dumps(content))
    # THEN it is not taken for this step's
    with pytest.raises(TraceError, match="another module"):
        card_step(note, tmp_path, A100)
