"""Compiled plans kept between runs, so that the same step for the same card is compiled once.

They lie in the user's cache (``user_cache``).
"""

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

LIMIT_BYTES: Final = 256 * 1024**2  # some five hundred plans of the size of ResNet50's

_FORMAT: Final = "2"
_SUFFIX: Final = ".plan.gz"


class PlanCache:
    """Plans by what they were compiled from.

    Args:
        folder: Where they lie; None for no cache at all.
        limit_bytes: All of them together; the ones not used for longest go first.
    """

    def __init__(self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes

    def find(self, key: str) -> CompiledModule | None:
        """Return the plan with this key, None where there is none that can be read."""
        if self.folder is None:
            return None
        file = self.folder / f"{key}{_SUFFIX}"
        try:
            plan = unpacked(file.read_bytes())
        except (OSError, ValueError):
            return None
        with contextlib.suppress(OSError):
            file.touch()
        return plan

    def keep(self, key: str, plan: CompiledModule) -> None:
        """Write a plan, whole or not at all, and drop the oldest beyond the limit."""
        if self.folder is None:
            return
        content = packed(plan)
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


def packed(plan: CompiledModule) -> bytes:
    """Return a plan as a file's content: a line of JSON and the HloProto, in gzip."""
    head = PlanHead(
        compiler=plan.compiler,
        statistics=plan.statistics,
        sha256=hashlib.sha256(plan.hlo).hexdigest(),
        module_sha256=plan.module_sha256,
    )
    return pack(json.dumps(asdict(head)).encode() + b"\n" + plan.hlo)


def unpacked(content: bytes) -> CompiledModule:
    """Return the plan in a file's content.

    Raises:
        ValueError: it is damaged.
    """
    line, _, hlo = unpack(content).partition(b"\n")
    try:
        head = decode_record(line, PlanHead, CARD_VERSION)
    except RecursionError:
        raise ValueError("its first line is nested too deeply") from None
    if hashlib.sha256(hlo).hexdigest() != head.sha256:
        raise ValueError("another digest")
    return CompiledModule(
        hlo=hlo,
        statistics=head.statistics,
        compiler=head.compiler,
        module_sha256=head.module_sha256,
        is_cached=True,
    )


def default_cache() -> PlanCache:
    """Return the user's cache, as the environment says."""
    return PlanCache(cache_folder())


def key_of(module: bytes, target: str, flags: tuple[str, ...], compiler: str) -> str:
    """Return the key of a plan: a digest of everything that decides it.

    Args:
        module: The module as bytes, an ``HloModuleProto``.
        target: The card as the compiler is told of it.
        flags: What the user set of ``XLA_FLAGS``.
        compiler: Name and version of the compiler.
    """
    digest = hashlib.sha256()
    for part in (_FORMAT.encode(), module, target.encode(), "\n".join(flags).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    digest.update(compiler.encode())
    return digest.hexdigest()
