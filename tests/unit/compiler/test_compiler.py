"""The real compiler, where the extra is installed, and its interface against the header."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import pytest

from analyzer.cards import find_gpu
from analyzer.cards.xla_compiler import find_compiler
from analyzer.model.errors import CompilerUnavailable
from analyzer.simulate.compiler import pjrt
from analyzer.simulate.compiler.compile_child import (
    Compilation,
    CompilerRefused,
    compile_in_child,
    plan_for_card,
)
from analyzer.tracing.xla.buffer_plan import ValueUse

DATA = Path(__file__).parent / "data"


@pytest.fixture
def installed() -> None:
    try:
        find_compiler()
    except CompilerUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def module() -> bytes:
    return gzip.decompress((DATA / "mlp.hlo.pb.gz").read_bytes())


def header() -> str:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        pytest.skip("no TensorFlow, no header")
    file = Path(spec.origin).parent / "include/xla/pjrt/c/pjrt_c_api.h"
    if not file.is_file():
        pytest.skip("this TensorFlow ships no PJRT header")
    return file.read_text("utf-8")


def test_the_function_table_is_the_headers() -> None:
    body = re.search(r"typedef struct PJRT_Api \{(.*?)\} PJRT_Api;", header(), re.S)
    if body is None:
        pytest.skip("TensorFlow before 2.17 has another header")
    names = re.findall(r"_PJRT_API_STRUCT_FIELD\(\s*PJRT_(\w+)\)", body.group(1))
    assert {name: names.index(name) for name in pjrt.TABLE} == pjrt.TABLE


def test_the_statistics_are_the_headers() -> None:
    body = re.search(
        r"struct PJRT_Executable_GetCompiledMemoryStats_Args \{(.*?)\};", header(), re.S
    )
    assert body is not None
    fields = re.findall(r"int64_t (\w+)_size_in_bytes;", body.group(1))
    assert tuple(name.replace("generated_", "") for name in fields[:5]) == pjrt.STATISTICS


@pytest.mark.usefixtures("installed")
def test_a_step_compiles_for_cards_that_are_not_there(module: bytes, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in ("t4", "a100-80gb", "h100"):
        found = plan_for_card(module, Compilation(gpu=find_gpu(name), folder=work))
        # plan_for_card has held the sum over the buffers against the compiler's totals.
        assert found.plan.platform == find_gpu(name).name
        assert found.plan.temp_bytes > 0
        assert found.plan.alias_bytes <= found.plan.argument_bytes
        assert any(
            region.use is ValueUse.TEMPORARY and region.holders for region in found.plan.regions
        )
    assert not list(work.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_product_that_triton_cannot_write_is_left_to_cublas_alone(tmp_path: Path) -> None:
    """A decoder whose heads' gradients have no tiling. TensorFlow's compiler, which had a phantom H100
    to ask, left them to cuBLAS: its step took 65,334,316 bytes, 8,455,952 of them resident."""
    module = gzip.decompress((DATA / "heads_of_96.hlo.pb.gz").read_bytes())
    h100 = find_gpu("h100-80gb-sxm")
    with pytest.raises(CompilerRefused, match="tile sizes"):
        compile_in_child(module, Compilation(gpu=h100, folder=tmp_path))
    found = plan_for_card(module, Compilation(gpu=h100, folder=tmp_path))
    assert found.plan.temp_bytes == pytest.approx(65_334_316 - 8_455_952, rel=0.001)


@pytest.mark.usefixtures("installed")
def test_bytes_that_are_no_module_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(CompilerUnavailable) as caught:
        plan_for_card(b"\xff no module", Compilation(gpu=find_gpu("t4"), folder=tmp_path))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
