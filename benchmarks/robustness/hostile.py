"""Damaged inputs: open each through the public path and count what is not one clear line.

    python benchmarks/robustness/hostile.py --seconds 600 --seed 1

A case is a sample (a run folder of a trace, of an estimate, finished or not, of an estimate for a card)
with one to three of its files damaged: bytes flipped, cut, repeated; JSON values replaced by hostile
ones; protobuf fields replaced by extremes; columns of saved tables changed, and their digests made to
agree; packed anew. It is opened, and written in every form, under a limit of time and memory. The same
seed makes the same cases. ``tests/unit/parse/test_hostile.py`` runs a few hundred.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import concurrent.futures
import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzer.model.contract.report_file import (
    DIGEST_FILE,
    encode_digest,
    read_report,
)
from analyzer.model.errors import AccountingError, AnalyzerError
from analyzer.tracing.parse.buffer_plan import HloProto
from analyzer.tracing.parse.protobuf import Space

ROOT: Final = Path(__file__).parents[2]
MOST_SECONDS: Final = 20
TABLES: Final = "prediction.npz"
MOST_BYTES: Final = 1 << 30

NUMBERS: Final = (
    0, 1, -1, 2, 63, 255, 1 << 16, 10**6, 10**9, 10**12, 2**31 - 1, 2**31, 2**48, 2**50, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, -(2**31), -(2**63), -(2**80), 0.5, -0.0, 1e12, 1e300,
    float("inf"), float("nan"),
)  # fmt: skip
TEXTS: Final = (
    "", "x", "0", "-1", "nan", "train", "gpu", "static", "parameter", "no such category",
    "../../etc/passwd", "/dev/zero", "a:b", ":", "::1", "x:-1", "x:99999999999", "^x", "\x00",
    "\ud800", "\u202e", "\x1b[2J", "L" * 100_000, "a/" * 2000 + "b", "=1+1", "[bold]",
    "{{7*7}}", "<script>", "float32", "resource",
    "Switch", "NextIteration", "Enter", "Exit", "Merge", "TensorListPushBack", "While",
    "_Arg", "_Retval",
)  # fmt: skip
OTHERS: Final = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [1, 2, 3],
    [-1],
    [2**40] * 3,
)


@dataclass(frozen=True)
class Sample:
    """A run folder that opens, and how often it is chosen."""

    folder: Path
    weight: int


def samples() -> list[Sample]:
    """Return the folders, the small ones first."""
    notes = ROOT / "tests" / "unit" / "predict" / "notes"
    found = [
        Sample(notes / name, 3)
        for name in ("cnn", "accumulation", "gpu", "infer", "jit")
    ]
    traces = ("infer", "jit", "oom", "eager", "accumulation", "cnn")
    found += [Sample(ROOT / "traces" / name, 2) for name in traces]
    return [*found, Sample(finished(), 6)]


@cache
def finished() -> Path:
    """Return a folder with a finished estimate, made once for this process and those forked from it."""
    from analyzer.session.opening import open_estimate
    from analyzer.session.target_results import save_report

    place = Path(tempfile.mkdtemp(prefix="hostile-finished-"))
    owner = os.getpid()
    atexit.register(
        lambda: os.getpid() == owner and shutil.rmtree(place, ignore_errors=True)
    )
    folder = Path(
        shutil.copytree(
            ROOT / "tests" / "unit" / "predict" / "notes" / "infer", place / "finished"
        )
    )
    save_report(open_estimate(folder), folder)
    return folder


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one to three files of a run folder; return what was done."""
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and file.suffix in (".json", ".gz", ".pb", ".npz")
    )
    if (folder / TABLES).is_file() and rng.random() < 0.8:
        files = [folder / "report.json", folder / TABLES]
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        file = rng.choice(files)
        content = file.read_bytes()
        packed = content[:2] == b"\x1f\x8b"
        if packed and rng.random() < 0.9:
            with contextlib.suppress(OSError, EOFError, zlib.error):
                content = gzip.decompress(content)
        else:
            packed = False
        name, content = _damaged(file, content, rng)
        if packed:
            content = gzip.compress(content, 1)
        if rng.random() < 0.01:
            name, content = (
                "bomb",
                gzip.compress(bytes(rng.choice((10**6, 3 * 10**8))), 9),
            )
        file.write_bytes(content)
        done.append(f"{file.name}: {name}")
    if (folder / TABLES).is_file() and rng.random() < 0.8:
        done.append(_seal(folder))
    return "; ".join(done)


def _seal(folder: Path) -> str:
    """Make the digests of a finished estimate those of its files, as whoever damaged it would."""
    try:
        (folder / DIGEST_FILE).write_bytes(encode_digest(folder))
    except Exception as error:  # damaged too far to be sealed
        return f"not sealed ({type(error).__name__})"
    return "sealed"


def _columns(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Change one to three columns of saved tables."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        columns = dict(arrays)
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice(sorted(columns))
        column = columns[name]
        kind = rng.choice(
            ("value", "value", "value", "all", "cut", "drop", "type", "shape", "json")
        )
        whole = [n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63]
        if kind == "drop":
            del columns[name]
        elif kind == "cut":
            columns[name] = column[: rng.randrange(len(column) + 1)]
        elif kind == "type":
            with np.errstate(all="ignore"):
                columns[name] = column.astype(
                    rng.choice(("float64", "int8", "uint64", "bool", "U4"))
                )
        elif kind == "shape":
            columns[name] = rng.choice(
                (column[None], column[:0], np.zeros((), column.dtype))
            )
        elif kind == "json" and column.dtype == np.uint8:
            text = _json(bytes(column), rng)[1]
            columns[name] = np.frombuffer(text, np.uint8)
        elif len(column):
            changed = column.astype(np.int64)
            if kind == "all":
                changed[:] = rng.choice(whole)
            else:
                changed[rng.randrange(len(column))] = rng.choice(whole)
            columns[name] = changed.astype(column.dtype)
        done.append(f"{kind} {name}")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **columns)
    return ", ".join(done), buffer.getvalue()


def _damaged(file: Path, content: bytes, rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < 0.2:
        return _bytes(content, rng)
    try:
        if file.suffix == ".npz":
            return _columns(content, rng)
        if file.name.startswith(("run.json", "graph.json", "card.json", "report.json")):
            return _json(content, rng)
        if ".xplane" in file.name:
            return _proto(Space.FromString(content), rng)
        head, rest = (
            content.split(b"\n", 1)
            if ".plan.gz" in file.name and b"\n" in content
            else (b"", content)
        )
        if head and rng.random() < 0.3:
            name, changed = _json(head, rng)
            return name, changed.replace(b"\n", b" ") + b"\n" + rest
        name, changed = _proto(HloProto.FromString(rest), rng)
        if head:
            changed = _head_of(head, changed) + changed
        return name, changed
    except Exception as error:  # damaged before, by another round
        return f"as it is ({type(error).__name__})", content


def _head_of(head: bytes, hlo: bytes) -> bytes:
    told = json.loads(head)
    told["sha256"] = hashlib.sha256(hlo).hexdigest()
    return json.dumps(told).encode() + b"\n"


def _bytes(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    data = bytearray(content)
    kind = rng.choice(("flip", "cut", "repeat", "drop", "noise", "swap"))
    at = rng.randrange(len(data) + 1)
    if kind == "flip":
        for _ in range(rng.choice((1, 1, 4, 32))):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "repeat":
        data[at:at] = data[at : at + rng.randrange(1, 4000)]
    elif kind == "drop":
        del data[at : at + rng.randrange(1, 400)]
    elif kind == "noise":
        data[at : at + 64] = rng.randbytes(64)
    else:
        old, new = rng.choice(
            ((b"0", b"9"), (b"true", b"1"), (b"{", b"["), (b'"', b"'"), (b":", b","))
        )
        data = bytearray(bytes(data).replace(old, new, rng.choice((1, 3, -1))))
    return kind, bytes(data)


def _json(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = json.loads(content)
    done = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        done.append(_change(tree, rng))
    if rng.random() < 0.02:
        depth = rng.choice((50, 900, 100_000))
        text = json.dumps(tree)
        return f"nested {depth}", text[
            :-1
        ].encode() + b', "deep": ' + b"[" * depth + b"]" * depth + b"}"
    if rng.random() < 0.03 and isinstance(tree, dict) and tree:
        key = rng.choice(list(tree))
        text = (
            json.dumps(tree)[:-1]
            + f", {json.dumps(key)}: {json.dumps(_hostile(rng))}}}"
        )
        return f"{key} twice", text.encode()
    return ", ".join(done), json.dumps(tree).encode("utf-8", "surrogatepass")


def _change(tree: Any, rng: random.Random) -> str:
    """Replace, drop, copy or move one value somewhere in the tree."""
    node, key, told = _place(tree, rng)
    if node is None:
        return "nothing"
    kind = rng.choice(("value", "drop", "copy", "graft", "graft", "graft", "scale"))
    if kind == "drop":
        del node[key]
    elif kind == "copy" and isinstance(node, list):
        node.extend([node[key]] * rng.choice((1, 2, 100)))
    elif kind == "graft":
        node[key] = _like(tree, node, key, rng)
    elif kind == "scale" and isinstance(node[key], int):
        node[key] = node[key] * rng.choice(
            (-1, 0, 2, 1000, 10**9, 10**15)
        ) + rng.choice((-1, 0, 1))
    else:
        node[key] = _hostile(rng)
    return f"{kind} {told}"


def _place(tree: Any, rng: random.Random) -> tuple[Any, Any, str]:
    """Return a container in the tree, a key of it, and the path that leads there."""
    node, path = tree, []
    stop = rng.choice((0.05, 0.15, 0.4))
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return None, None, ""
        key = rng.choice(keys)
        path.append(key)
        child = node[key]
        if not isinstance(child, (dict, list)) or not child or rng.random() < stop:
            return node, key, "/".join(map(str, path))[:80]
        node = child


def _like(tree: Any, node: Any, key: Any, rng: random.Random) -> Any:
    """Return a value of the same type from elsewhere in the tree, where one is soon found."""
    for _ in range(40):
        other, found, _ = _place(tree, rng)
        same_name = found == key or not isinstance(key, str)
        if other is not None and same_name and type(other[found]) is type(node[key]):
            return json.loads(json.dumps(other[found]))
    return _hostile(rng)


def _hostile(rng: random.Random) -> Any:
    return rng.choice(rng.choice((NUMBERS, NUMBERS, TEXTS, OTHERS)))


def _proto(message: Any, rng: random.Random) -> tuple[str, bytes]:
    """Change fields of a protobuf message, wherever they are."""
    done = []
    for _ in range(rng.choice((1, 1, 3, 20))):
        node, path = message, []
        while True:
            fields = node.ListFields()
            if not fields:
                break
            field, value = rng.choice(fields)
            path.append(field.name)
            if field.message_type is not None:
                if hasattr(value, "extend"):
                    if rng.random() < 0.05:
                        _change_repeated(value, rng)
                        break
                    node = value[rng.randrange(len(value))]
                else:
                    node = value
                continue
            _set(node, field, value, rng)
            break
        done.append("/".join(path))
    return ", ".join(done)[:120], message.SerializeToString()


def _change_repeated(value: Any, rng: random.Random) -> None:
    kind = rng.choice(("drop", "cut", "copy", "swap"))
    at = rng.randrange(len(value))
    if kind == "drop":
        del value[at]
    elif kind == "cut":
        del value[at:]
    elif kind == "copy":
        value.add().CopyFrom(value[at])
    else:
        value[at].CopyFrom(value[rng.randrange(len(value))])


def _set(node: Any, field: Any, value: Any, rng: random.Random) -> None:
    def one() -> Any:
        if field.cpp_type == field.CPPTYPE_STRING:
            return rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        if field.cpp_type == field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        if field.cpp_type == field.CPPTYPE_DOUBLE:
            return float(rng.choice(NUMBERS))
        low, high = (
            (0, 2**64 - 1)
            if field.cpp_type == field.CPPTYPE_UINT64
            else (-(2**63), 2**63 - 1)
        )
        return max(
            low, min(high, int(rng.choice([n for n in NUMBERS if isinstance(n, int)])))
        )

    if hasattr(value, "extend"):
        if value and rng.random() < 0.7:
            value[rng.randrange(len(value))] = one()
        else:
            value.append(one())
    else:
        setattr(node, field.name, one())


def open_and_write(folder: Path, out: Path, *, search: bool = False) -> str:
    """Open what lies in ``folder`` and write it in every form; return how it ended.

    Every error but one clear line is the caller's.
    """
    from analyzer.session.opening import open_result

    try:
        result = open_result(folder, search=search)
        _write(result, out)
    except AccountingError:
        raise
    except AnalyzerError as error:
        text = str(error)
        if "\n" in text or not text.isprintable():
            raise ValueError(f"not one line: {text[:200]!r}") from error
        return f"refused: {type(error).__name__}"
    return "opened"


def _write(result: Any, out: Path) -> None:
    """Write a result in every form, and read what is to be read again."""
    from rich.console import Console

    from analyzer.report.render.terminal import print_terminal
    from analyzer.report.report_sections import report_document

    with (out / "text").open("w", encoding="utf-8") as file:
        print_terminal(report_document(result.report), Console(file=file, width=100))
    result.to_json(out / "report.json")
    read_report(out / "report.json")
    result.to_html(out / "report.html")
    result.to_markdown(out / "report.md")
    result.to_csv(out / "report.csv")
    repr(result)


def make_case(seed: int, folder: Path) -> str:
    """Write the damaged folder of a seed; return what was damaged."""
    rng = random.Random(seed)
    known = samples()
    sample = rng.choices(known, [one.weight for one in known])[0]
    shutil.copytree(sample.folder, folder)
    kind = sample.folder.name
    place = "trace" if (folder / "plugins").is_dir() else "note"
    return f"{place} {kind}: {damage(folder, rng)}"


def _open(place: Path, pipe: int) -> None:
    """Open a case's folder; write the outcome into the pipe."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (place / "out").mkdir()
            outcome = open_and_write(place / "run", place / "out")
    except BaseException as error:
        lines = traceback.extract_tb(error.__traceback__)
        ours = [line for line in lines if "/analyzer/" in line.filename]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
        outcome = f"UNCAUGHT {type(error).__name__} at {where}: {str(error)[:160]!r}"
    told = {"outcome": outcome, "cpu_s": time.process_time() - start}
    os.write(pipe, json.dumps(told).encode()[:60_000])


def _make(seed: int, place: Path, pipe: int) -> None:
    """Make a case's folder; write into the pipe what was damaged."""
    os.write(
        pipe, json.dumps({"damage": make_case(seed, place / "run")}).encode()[:60_000]
    )


def _forked(call: Callable[[int], None]) -> tuple[dict[str, Any], int, Any]:
    """Run a call in a process of its own; return what it wrote into its pipe, its status and its use."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS + 2))
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
        try:
            call(writing)
        finally:
            os._exit(0)
    os.close(writing)
    text = b""
    while part := os.read(reading, 65536):
        text += part
    os.close(reading)
    _, status, usage = os.wait4(child, 0)
    return (json.loads(text) if text else {}), status, usage


def run_case(seed: int) -> dict[str, Any]:
    """Open one case in a process of its own; return how it ended, its time and its memory.

    Another makes it: what a bomb takes to be made is not what it takes to be opened.
    """
    place = Path(tempfile.mkdtemp(prefix="hostile-"))
    started = time.monotonic()
    made, _, _ = _forked(lambda pipe: _make(seed, place, pipe))
    if not made:
        raise RuntimeError(f"The case of seed {seed} could not be made.")
    told, status, usage = _forked(lambda pipe: _open(place, pipe))
    told = {"outcome": "", **made, **told}
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        told["outcome"] = (
            f"HANG after {MOST_SECONDS} s" if name == "SIGXCPU" else f"UNCAUGHT {name}"
        )
    elif usage.ru_maxrss * 1024 > MOST_BYTES:
        told["outcome"] = f"MEMORY {usage.ru_maxrss >> 10} MiB, {told['outcome']}"
    shutil.rmtree(place, ignore_errors=True)
    return {"seed": seed, "wall_s": time.monotonic() - started, **told}


def _warm() -> None:
    """Import and compile everything once, so that a case costs what its input costs."""
    out = Path(tempfile.mkdtemp(prefix="hostile-"))
    for sample in samples()[:1] + samples()[-1:]:
        open_and_write(sample.folder, out)
    shutil.rmtree(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--only", type=int, help="run this seed alone, here, with its traceback"
    )
    chosen = parser.parse_args()
    _warm()
    if chosen.only is not None:
        place = Path(tempfile.mkdtemp(prefix="hostile-"))
        print(make_case(chosen.only, place / "run"))
        (place / "out").mkdir()
        print(open_and_write(place / "run", place / "out"), "in", place)
        return 0
    ends: collections.Counter[str] = collections.Counter()
    bad: dict[str, list[dict[str, Any]]] = {}
    until = time.monotonic() + chosen.seconds
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        seeds = iter(range(chosen.seed, chosen.seed + chosen.cases))
        running = {
            pool.submit(run_case, seed) for seed in itertools.islice(seeds, chosen.jobs)
        }
        while running:
            ready, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for one in ready:
                told = one.result()
                head = told["outcome"].split(":")[0]
                ends[head.split(" ")[0]] += 1
                if head.split(" ")[0].isupper():
                    key = ":".join(told["outcome"].split(":")[:2])
                    bad.setdefault(key, []).append(told)
                if time.monotonic() < until and (seed := next(seeds, None)) is not None:
                    running.add(pool.submit(run_case, seed))
    print(f"{sum(ends.values())} cases:", dict(ends))
    for cases in sorted(bad.values(), key=len, reverse=True):
        first = cases[0]
        print(
            f"{len(cases):5} {first['outcome'][:200]}  [seed {first['seed']}: {first['damage'][:160]}]"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
