"""The user's ``XLA_FLAGS``."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from analyzer.capture.xla.xla_dumps import add_dump_flags, remove_dump_flags
from analyzer.cards.xla_compiler import compiler_flags
from analyzer.model.xla_flags import read_flags


def test_what_decides_the_plan_is_taken_over() -> None:
    text = "--xla_gpu_autotune_level=0 --xla_dump_to=/tmp/x --xla_dump_hlo_as_text"
    assert compiler_flags(text) == ("--xla_gpu_autotune_level=0",)
    assert compiler_flags("--xla_gpu_cuda_data_dir='/a b' --xla_x='1 2'") == ("--xla_x=1 2",)
    assert compiler_flags("--xla_x='half") == ("--xla_x='half",)
    assert compiler_flags("") == ()


def test_a_file_of_flags_is_spelled_out(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("--xla_a=1\n--xla_b=2\n", encoding="utf-8")
    assert compiler_flags(str(file)) == ("--xla_a=1", "--xla_b=2")
    assert read_flags(str(tmp_path / "none")) == ""
    ours = add_dump_flags(tmp_path / "dump", str(file))
    assert ours.startswith("--xla_a=1 --xla_b=2 --xla_dump_to=")
    assert remove_dump_flags(ours) == "--xla_a=1 --xla_b=2"


@pytest.mark.parametrize("name", ["plain", "a b", 'a "b', "a\\ b", "it's"])
def test_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    flags = add_dump_flags(tmp_path / name, "--xla_a=1")
    assert shlex.split(flags) == [
        "--xla_a=1",
        f"--xla_dump_to={tmp_path / name}",
        "--xla_dump_hlo_as_proto",
    ]
    assert remove_dump_flags(flags) == "--xla_a=1"


def test_a_plan_without_a_run_is_compiled_fast(tmp_path: Path) -> None:
    flags = add_dump_flags(tmp_path / "dump", "--xla_a=1", is_run=False)
    assert flags.endswith("--xla_dump_hlo_as_proto --xla_backend_optimization_level=0")
    assert remove_dump_flags(flags) == "--xla_a=1"
