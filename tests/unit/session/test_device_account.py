"""The account of a card from figures made up here, and what is said of the variables that are set."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec
import pytest
from builders import INSTALLED
from schemas import breaches

from analyzer.model.contract.child_messages import (
    AllocatorFigures,
    NvmlCard,
    NvmlProcess,
    NvmlReading,
    ProcessFigures,
)
from analyzer.session import device_reading
from analyzer.session.device_account import account_for_process
from analyzer.session.device_file import switches_of

MIB = 1 << 20
TOTAL = 16000 * MIB


def card(*processes: NvmlProcess, used: int, reserved: int | None = 100 * MIB) -> NvmlCard:
    return NvmlCard(
        index=0,
        name="Some Card",
        uuid="GPU-1",
        total_bytes=TOTAL,
        used_bytes=used,
        free_bytes=TOTAL - used - (reserved or 0),
        reserved_bytes=reserved,
        compute_mode="default",
        is_partitioned=False,
        processes=processes,
    )


def figures(shown: NvmlCard | None) -> ProcessFigures:
    return ProcessFigures(
        stage="",
        pid=7,
        versions={},
        allocators=(
            AllocatorFigures(
                device="GPU:0",
                card_uuid="GPU-1",
                card_name="Some Card",
                in_use_bytes=300 * MIB,
                peak_in_use_bytes=400 * MIB,
                limit_bytes=1000 * MIB,
                grows=False,
                region_bytes=1000 * MIB,
                regions=1,
                is_pool=True,
            ),
        ),
        libraries=("cublas", "cudnn"),
        settings={},
        reading=None if shown is None else NvmlReading(driver="1", cards=(shown,)),
        refusal="No driver.",
    )


def sizes(shown: NvmlCard) -> dict[str, int]:
    document = account_for_process(figures(shown), {})
    assert breaches(json.loads(msgspec.json.encode(document)), "device", "DeviceFile") == []
    (account,) = document.cards
    assert all(row.low_bytes == row.high_bytes for row in account.rows)
    return {row.id: row.low_bytes // MIB for row in account.rows}


def test_parts_add_up_with_a_driver_that_keeps_something_for_itself() -> None:
    own = NvmlProcess(pid=7, used_bytes=1500 * MIB, is_own=True)
    found = sizes(card(own, used=1600 * MIB))
    assert found == {
        "in-use": 300,
        "pool-unused": 700,
        "outside-pool": 500,
        "unattributed": 100,
        "reserved": 100,
        "free": 14300,
    }


def test_in_a_container_the_rest_of_the_process_is_with_the_others() -> None:
    found = sizes(card(used=1600 * MIB))
    assert found["unattributed"] == 600
    assert "outside-pool" not in found
    (account,) = account_for_process(figures(card(used=1600 * MIB)), {}).cards
    assert any("in a container" in note for note in account.notes)


def test_a_process_whose_bytes_the_driver_hides_is_named_without_them() -> None:
    hidden = NvmlProcess(pid=9, used_bytes=None, name="other")
    (account,) = account_for_process(figures(card(hidden, used=1600 * MIB)), {}).cards
    (row,) = (row for row in account.rows if row.id == "other-process")
    assert (row.low_bytes, "does not report" in row.note) == (0, True)


def test_without_a_driver_tensorflows_side_stands_alone() -> None:
    found = account_for_process(figures(None), {})
    assert found.cards == ()
    assert found.notes[0].startswith("No driver.")
    assert "300.0 MiB" in found.headline


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true", "grows on demand"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "1", "logs an error"),
        ("TF_GPU_ALLOCATOR", "cuda_malloc_async", "the driver keeps the pool"),
        ("CUDA_VISIBLE_DEVICES", "", "no card"),
        ("CUDA_VISIBLE_DEVICES", "1", "only these"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5", "read by JAX only"),
    ],
)
def test_a_switch_is_told_with_what_its_value_does(name: str, value: str, words: str) -> None:
    (found,) = switches_of({name: value, "HOME": "/"})
    assert (found.name, found.value) == (name, value)
    assert words in found.does


def test_without_a_gpu_it_is_one_line_and_no_tensorflow() -> None:
    code = (
        "import sys\nsys.argv[1:] = ['device']\n"
        "from analyzer.cli import run\ncode = run()\n"
        "assert 'tensorflow' not in sys.modules\nsys.exit(code)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(INSTALLED), "LD_LIBRARY_PATH": ""}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "finds no GPU" not in ended.stdout:
        pytest.skip("there is one")
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 1)


def test_a_name_from_outside_is_harmless_in_the_terminal() -> None:
    bad = NvmlProcess(pid=9, used_bytes=5, name="\x1b[31mred")
    found = device_reading.DeviceReport(
        account_for_process(figures(card(bad, used=1600 * MIB)), {})
    )
    assert "\x1b" not in str(found)
    json.dumps(found.plain)
