"""The kit that records a card: its calls of cuDNN, and its file."""

from __future__ import annotations

import gzip
import importlib
import math
import sys
from ctypes import c_char_p
from pathlib import Path
from typing import Any

import pytest

KIT = Path(__file__).parents[3] / "benchmarks" / "card"


@pytest.fixture
def kit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the kit by name."""
    monkeypatch.syspath_prepend(str(KIT))
    yield importlib.import_module
    for name in ("card_record", "cudnn_sweep"):
        sys.modules.pop(name, None)


class FakeCudnn:
    """Records descriptors, and answers each search with one candidate as large as all operands."""

    def __init__(self, missing: str = "") -> None:
        self.made: dict[int, tuple[int, ...]] = {}
        self.destroyed = 0
        self.missing = missing
        self.convolution: dict[str, tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        if name == self.missing or not name.startswith("cudnn"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> int:
            return self.answer(name, arguments)

        return answer

    def answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "cudnnGetVersion":
            return 91002
        if name == "cudnnGetErrorString":
            return c_char_p(b"CUDNN_STATUS_NOT_SUPPORTED").value
        if name.startswith("cudnnCreate"):
            arguments[0]._obj.value = 1000 + len(self.made)
            self.made[arguments[0]._obj.value] = ()
        elif (
            name == "cudnnSetTensorNdDescriptorEx"
            or name == "cudnnSetFilterNdDescriptor"
        ):
            self.made[arguments[0].value] = tuple(arguments[4])
        elif name == "cudnnSetConvolutionNdDescriptor":
            self.convolution["sides"] = tuple(arguments[2]) + tuple(arguments[3])
        elif name == "cudnnSetConvolutionGroupCount":
            self.convolution["groups"] = (arguments[1],)
        elif name.startswith("cudnnDestroy"):
            self.destroyed += 1
        elif "Algorithm" in name:
            return self.search(name, arguments)
        return 0

    def search(self, name: str, arguments: tuple[Any, ...]) -> int:
        _, first, second, _, third, most, count, found = arguments
        shapes = [self.made[one.value] for one in (first, second, third)]
        if "BackwardFilter" in name and shapes[0][0] == 1:
            return 9
        assert most.value > 1
        count._obj.value = 2
        found[0].algorithm, found[0].time_ms = len(name), 0.25
        found[0].memory = sum(4 * math.prod(shape) for shape in shapes)
        found[1].status = 9
        return 0


def test_a_convolution_is_asked_with_its_shapes(kit: Any) -> None:
    sweep = kit("cudnn_sweep")
    library = FakeCudnn()
    cudnn = sweep.Cudnn(library)
    assert cudnn.version == 91002
    one = sweep.Convolution(
        shape=(2, 8, 9, 9), filters=16, kernel=3, stride=2, padding=1, groups=4
    )
    assert one.result == (2, 16, 5, 5)
    for kind in sweep.KINDS:
        row = cudnn.ask(kind, one, "float32", "NCHW", tf32=False)
        (found,) = row.candidates
        assert found.workspace_bytes == 4 * (2 * 8 * 81 + 2 * 16 * 25 + 16 * 2 * 9)
        assert found.time_us == 250
    assert library.convolution == {"sides": (1, 1, 2, 2), "groups": (4,)}
    assert library.destroyed == len(library.made) - 1  # the handle stays


def test_a_refusal_is_a_row_and_a_missing_function_an_error(kit: Any) -> None:
    sweep = kit("cudnn_sweep")
    one = sweep.Convolution(shape=(1, 8, 9, 9), filters=16, kernel=1)
    row = sweep.Cudnn(FakeCudnn()).ask("filter", one, "float16", "NHWC", tf32=True)
    assert row.candidates == ()
    assert row.failed.endswith("CUDNN_STATUS_NOT_SUPPORTED")
    with pytest.raises(sweep.CudnnError, match="has no cudnnCreate"):
        sweep.Cudnn(FakeCudnn("cudnnCreate"))


def test_the_whole_sweep_fits_the_file(kit: Any, tmp_path: Path) -> None:
    sweep, record = kit("cudnn_sweep"), kit("card_record")
    rows = tuple(
        sweep.sweep(sweep.Cudnn(FakeCudnn()), list(sweep.list_convolutions((1, 8))))
    )
    assert (
        len(
            {
                (row.kind, row.shape, row.dtype, row.layout, row.allows_tf32)
                for row in rows
            }
        )
        > 300
    )
    path = tmp_path / "card.json.gz"
    whole = record.CardRecord(
        card=record.CardFacts(name="card"), cudnn=91002, convolutions=rows
    )
    record.write_record(path, whole)
    assert record.read_record(path) == whole
    assert path.stat().st_size < 1 << 20


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"card":1}', mtime=0)],
)
def test_a_foreign_file_is_refused(kit: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "card.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a record of a card"):
        kit("card_record").read_record(path)
