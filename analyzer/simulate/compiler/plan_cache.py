"""A cache of compiled plans in the user's cache folder (``user_cache``)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from analyzer.model.contract.card_note import CARD_VERSION, PlanHead
from analyzer.model.contract.reading import decode_record, pack, unpack
from analyzer.model.user_cache import cache_folder
from analyzer.simulate.compiler.compile_child import CompiledModule

LIMIT_BYTES: Final = 256 << 20
"""Largest size of the cache: about 500 plans of ResNet50."""

_FORMAT: Final = "2"
_SUFFIX: Final = ".plan.gz"


class PlanCache:
    """Compiled plans by key.

    Args:
        folder: Folder of the plans; None for no cache.
    """

    def __init__(self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes

    def find(self, key: str) -> CompiledModule | None:
        """Return the plan with this key; None if there is none or it cannot be read."""
        if self.folder is None:
            return None
        file = self.folder / f"{key}{_SUFFIX}"
        try:
            plan = unpack_plan(file.read_bytes())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            file.touch()
        return plan

    def store(self, key: str, plan: CompiledModule) -> None:
        """Write a plan atomically, and remove the oldest plans beyond the limit."""
        if self.folder is None:
            return
        content = pack_plan(plan)
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                Path(part).replace(self.folder / f"{key}{_SUFFIX}")
            finally:
                Path(part).unlink(missing_ok=True)
            self._trim()

    def _trim(self) -> None:
        assert self.folder is not None
        plans = [(file, file.stat()) for file in self.folder.glob(f"*{_SUFFIX}")]
        total = sum(stat.st_size for _, stat in plans)
        for file, stat in sorted(plans, key=lambda plan: plan[1].st_mtime):
            if total <= self._limit_bytes:
                break
            file.unlink(missing_ok=True)
            total -= stat.st_size


def pack_plan(plan: CompiledModule) -> bytes:
    """Return the file content of a plan: a line of JSON and the HloProto, in gzip."""
    head = PlanHead(
        compiler=plan.compiler,
        statistics=plan.statistics,
        sha256=hashlib.sha256(plan.hlo).hexdigest(),
        module_sha256=plan.module_sha256,
    )
    return pack(json.dumps(asdict(head)).encode() + b"\n" + plan.hlo)


def unpack_plan(content: bytes) -> CompiledModule:
    """Return the plan in a file's content.

    Raises:
        ValueError: the content is damaged.
    """
    line, _, hlo = unpack(content).partition(b"\n")
    try:
        head = decode_record(line, PlanHead, CARD_VERSION)
    except RecursionError:
        raise ValueError("the first line is nested too deeply") from None
    if hashlib.sha256(hlo).hexdigest() != head.sha256:
        raise ValueError("the digest differs")
    return CompiledModule(
        hlo=hlo,
        statistics=head.statistics,
        compiler=head.compiler,
        module_sha256=head.module_sha256,
        is_cached=True,
    )


def default_cache() -> PlanCache:
    """Return the cache in the user's cache folder."""
    return PlanCache(cache_folder())


def make_key(module: bytes, target: str, flags: tuple[str, ...], compiler: str) -> str:
    """Return the key of a plan: a digest of all inputs of the compiler."""
    digest = hashlib.sha256()
    for part in (_FORMAT.encode(), module, target.encode(), "\n".join(flags).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(compiler.encode())
    return digest.hexdigest()
