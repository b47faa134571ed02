"""A shortened answer is small and keeps to the schema; ``--json - --full`` has every row.

That ``--json -`` prints the shortened answer is tested with the server that returns it.
"""

import json
from pathlib import Path

import pytest
from builders import SAMPLES, analyze, sample_folder
from schemas import breaches

from analyzer.report.short_json import SHORT_BYTES, shorten

LOG = Path(__file__).parents[1] / "oom" / "logs" / "gpu_conv.log.gz"
COMMANDS = [
    *((("trace", sample_folder(name)), "report", "ReportFile") for name in SAMPLES),
    (
        ("diff", sample_folder("infer"), sample_folder("transformer")),
        "report",
        "DiffFile",
    ),
    (("gpus",), "gpus", "CardList"),
    (("device",), "device", "DeviceFile"),
    (("oom", LOG), "oom", "OomDocument"),
]


@pytest.mark.parametrize(("words", "schema", "record"), COMMANDS)
def test_standard_output_has_the_most_important_rows(
    words: tuple[str, ...], schema: str, record: str
) -> None:
    full = json.loads(analyze(*words, "--json", "-", "--full").out)
    text = shorten(full)  # as the command does without --full
    short = json.loads(text)
    assert len(text) <= SHORT_BYTES
    assert [*breaches(short, schema, record), *breaches(full, schema, record)] == []
    assert full.pop("shortened") == {}

    for name, length in short.pop("shortened").items():
        long, kept = full, short
        for part in name.split("."):
            if isinstance(long, list):
                break
            long, kept = long[part], kept[part]
        else:
            assert len(long) == length
            assert kept == long[: len(kept)]
            long.clear()
            kept.clear()

    assert {**short, "findings": []} == {**full, "findings": []}
