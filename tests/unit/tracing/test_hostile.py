"""Damaged run folders: each opens or is refused in one line, in bounded time and memory."""

import gzip
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.model.errors import AnalyzerError, TraceError
from analyzer.session.opening import open_result
from analyzer.tracing.parse.buffer_plan import HloProto, read_plan
from analyzer.tracing.parse.run_folder import read_run
from benchmarks.robustness import hostile

NOTES = hostile.ROOT / "tests" / "unit" / "predict" / "notes"
TRACES = hostile.ROOT / "traces"


def copy_of(sample: Path, folder: Path) -> Path:
    shutil.copytree(sample, folder)
    return folder


def refusal(read: Callable[[], object]) -> str:
    """Return what the user is told, empty where it is read."""
    try:
        read()
    except AnalyzerError as error:
        return str(error)

    return ""


def change_run(folder: Path, **changes: Any) -> None:
    file = folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("part", range(8))
def test_notes_and_graphs_that_are_damaged(part: int, tmp_path: Path) -> None:
    # GIVEN the small samples with values of their JSON replaced, dropped, repeated and moved
    for seed in range(25 * part, 25 * part + 25):
        rng = random.Random(seed)
        sample = rng.choice(
            [NOTES / "infer", NOTES / "jit", TRACES / "infer", TRACES / "eager"]
        )
        folder = copy_of(sample, tmp_path / str(seed))
        file = folder / rng.choice(["run.json", "graph.json.gz"])
        if not file.is_file():
            file = folder / "run.json"
        content = file.read_bytes()
        packed = file.suffix == ".gz"
        _, content = hostile._json(gzip.decompress(content) if packed else content, rng)
        file.write_bytes(gzip.compress(content, 1) if packed else content)
        # THEN the note is read, or refused in one line
        assert "\n" not in refusal(lambda place=folder: read_run(place / "run.json")), (
            seed
        )


def test_modules_that_are_damaged() -> None:
    content = gzip.decompress((NOTES / "jit" / "plan.hlo.pb.gz").read_bytes())
    ended = set()

    for seed in range(120):
        rng = random.Random(seed)
        _, damaged = hostile._proto(HloProto.FromString(content), rng)
        told = refusal(lambda content=damaged: read_plan(content))
        assert "\n" not in told, seed
        ended.add(bool(told))

    assert ended == {True, False}


@pytest.mark.parametrize("seed", range(12))
def test_folders_that_are_damaged_open_or_are_refused(
    seed: int, tmp_path: Path
) -> None:
    hostile.make_case(seed, tmp_path / "run")
    (tmp_path / "out").mkdir()
    assert hostile.open_and_write(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"steps_wanted": 10**9}, "steps_wanted"),
        ({"steps_wanted": 10_000}, "steps to predict"),
        ({"variables": [{"path": "v", "dtype": "float32", "shape": [2**49, 9], "category": "x"}]}, "x"),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [2**49, 9]}]}, "no computer"),
        ({"schema_version": 2}, "newer version"),
        ({"graph": "../graph.json.gz"}, "outside"),
        ({"scopes": {"a": 1}}, "scopes"),
        ({"step": "train"}, "step"),
    ],
)  # fmt: skip
def test_a_note_beyond_bounds_is_refused(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    folder = copy_of(NOTES / "infer", tmp_path / "run")
    change_run(folder, **changes)
    started = time.process_time()
    with pytest.raises(TraceError) as caught:
        open_result(folder, search=False)
    assert told in str(caught.value)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "name", ["graph.json.gz", "plugins/profile/run/host.xplane.pb.gz"]
)
def test_what_unpacks_to_a_thousand_times_its_size_is_refused(
    name: str, tmp_path: Path
) -> None:
    folder = copy_of(TRACES / "infer", tmp_path / "run")
    (folder / name).write_bytes(gzip.compress(bytes(200_000_000), 9))
    with pytest.raises(TraceError, match="unpacks to more than"):
        open_result(folder, search=False)


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _endless(file: Path) -> None:
    file.symlink_to("/dev/zero")


def _sparse(file: Path) -> None:
    with file.open("wb") as made:
        made.truncate(1 << 42)


@pytest.mark.parametrize("make", [_pipe, _endless, _sparse])
@pytest.mark.parametrize(
    ("sample", "name"),
    [
        (TRACES / "infer", "graph.json.gz"),
        (NOTES / "jit", "graph.json.gz"),
        (NOTES / "jit", "plan.hlo.pb.gz"),
    ],
)
def test_what_never_ends_is_not_read(
    sample: Path, name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = copy_of(sample, tmp_path / "run")
    (folder / name).unlink()
    make(folder / name)
    start = time.process_time()
    told = refusal(lambda: open_result(folder, search=False))
    assert name in told or "run.json is damaged" in told
    assert "is no regular file" in told or "it has 4194304 MiB" in told
    assert time.process_time() - start < 30
