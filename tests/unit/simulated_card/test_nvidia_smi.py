"""The stand-in for ``nvidia-smi`` shows the memory that a process publishes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from analyzer.simulated_card import nvidia_smi

MIB = 1 << 20


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = struct.Struct("<q16Q")
    own, gone = [300 * MIB, *[0] * 15], [500 * MIB, *[0] * 15]
    (tmp_path / "use").write_bytes(
        row.pack(os.getpid(), *own) + row.pack(1 << 30, *gone)
    )
    monkeypatch.setenv("SIMULATED_CARD_USE", str(tmp_path / "use"))
    monkeypatch.setenv(
        "SIMULATED_CARDS", f"Tesla T4,7,5,40,1,1,256,1,1,1,1,1,{15000 * MIB},{MIB}"
    )


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--query-gpu=memory.used", "--format=csv,noheader,nounits"], "300\n"),
        (
            ["--query-gpu=name,memory.total,memory.free", "--format=csv"],
            "name, memory.total [MiB], memory.free [MiB]\nTesla T4, 15000 MiB, 14700 MiB\n",
        ),
        (["--query-gpu=fan.speed", "--format=csv,noheader"], "[N/A]\n"),
    ],
)
def test_a_query_is_answered(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nvidia_smi.main(arguments) == 0
    assert capsys.readouterr().out == words


@pytest.mark.usefixtures("card")
def test_the_list_shows_use_and_process(capsys: pytest.CaptureFixture[str]) -> None:
    nvidia_smi.main(["-L"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "GPU 0: Tesla T4 (simulated), 300MiB / 15000MiB"
    assert lines[1:] == [f"  process {os.getpid()}: 300MiB"]
