"""The owners of the live bytes when a step after the traced ones ran out of memory."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from analyzer.explain.analysis import Analysis
from analyzer.explain.buffer_words import in_brackets
from analyzer.explain.questions.out_of_memory import requested_by
from analyzer.model.contract.fields import EvidenceRow
from analyzer.model.contract.watch_note import FailedStep, HeldTensors, LiveChunk, WatchNote
from analyzer.model.recording.records import Finding, Severity
from analyzer.model.recording.timeline import alive_at
from analyzer.model.units import format_bytes

_ROWS: Final = 20


class ByteOwner(NamedTuple):
    """The owner of live bytes; empty texts if unknown."""

    layer: str = ""
    category: str = "unattributed"
    holder: str = ""
    where: str = ""


def find_failed_step(analysis: Analysis, watch: WatchNote) -> list[Finding]:
    """Report the owners of the live bytes at a failed allocation."""
    failed = watch.failed
    if failed is None:
        return []
    owners = name_live_bytes(analysis, failed)
    named = sum(size for owner, size in owners.items() if owner != ByteOwner())
    wanted = requested_by(failed.message)
    request = "A request" if wanted is None else f"A request for {format_bytes(wanted)}"
    (first, size_bytes), *_ = owners.most_common(1) or [(ByteOwner(), 0)]
    words = first.holder or " ".join(
        filter(None, (first.category, first.layer and f"of {first.layer}"))
    )
    return [
        Finding(
            id="out-of-memory",
            severity=Severity.HIGH,
            title=f"Step {failed.step} ran out of memory: {format_bytes(size_bytes)} of "
            f"{format_bytes(failed.in_use_bytes)} in use belong to {words}{in_brackets(first.where)}",
            detail=f"{request} failed. The owners of {named / max(failed.in_use_bytes, 1):.1%} of the "
            "bytes in use are known: variables and tensors that Python holds by address, other buffers "
            "of the step by the size and time of the same buffer in the traced steps.",
            evidence=tuple(_make_row(owner, size) for owner, size in owners.most_common(_ROWS)),
        )
    ]


def _make_row(owner: ByteOwner, size_bytes: int) -> EvidenceRow:
    return {
        "what": owner.category,
        "name": owner.holder or owner.layer,
        "layer": owner.layer,
        "where": owner.where,
        "bytes": size_bytes,
    }


def name_live_bytes(analysis: Analysis, failed: FailedStep) -> Counter[ByteOwner]:
    """Return the live bytes at a failed allocation by owner; ``ByteOwner()`` for bytes without one."""
    rows = analysis.rows
    variables = rows[rows["variable"] != ""].drop_duplicates("variable", keep="last")
    by_variable = {str(row.variable): row for row in variables.itertuples()}
    by_address = {address: held for held in failed.held for address in held.addresses}
    owners: Counter[ByteOwner] = Counter()
    rest = []
    for chunk in failed.chunks:
        if chunk.variable:
            row = by_variable.get(chunk.variable)
            layer, category = (str(row.layer), str(row.category)) if row else ("", "parameter")
            owners[ByteOwner(layer, category, f"the variable {chunk.variable}")] += chunk.size_bytes
        elif chunk.address in by_address:
            held = by_address[chunk.address]
            owners[_describe_held(analysis, chunk, held)] += chunk.size_bytes
        else:
            rest.append(chunk)
    _name_by_size(analysis, rest, owners)
    owners[ByteOwner()] += failed.in_use_bytes - owners.total()
    return +owners


def _describe_held(analysis: Analysis, chunk: LiveChunk, held: HeldTensors) -> ByteOwner:
    """Return the owner of a tensor that Python holds; its traced twin tells layer and category."""
    watch = analysis.recording.watch
    twins = {
        address
        for one in (() if watch is None else watch.held)
        if (one.holder, one.where) == (held.holder, held.where)
        for address in one.addresses
    }
    rows = analysis.rows
    is_alike = rows["requested_bytes"] == chunk.requested_bytes
    found = rows[is_alike & rows["address"].isin(twins)]
    found = rows[is_alike] if found.empty else found
    if found.empty:
        return ByteOwner("", "input", held.holder, held.where)
    row = found.iloc[-1]
    return ByteOwner(str(row["layer"]), str(row["category"]), held.holder, held.where)


def _name_by_size(analysis: Analysis, chunks: list[LiveChunk], owners: Counter[ByteOwner]) -> None:
    """Add the owners of a step's buffers, from the traced instant with the most similar sizes."""
    wanted = Counter(chunk.requested_bytes for chunk in chunks)
    instant = _find_similar_instant(analysis, wanted)
    alive: dict[int, list[pd.Series]] = {}
    for _, row in alive_at(analysis.rows, instant).iterrows():
        if not row["variable"]:
            alive.setdefault(int(row["requested_bytes"]), []).append(row)
    for chunk in chunks:
        if twins := alive.get(chunk.requested_bytes):
            row = twins.pop()
            owner = ByteOwner(str(row["layer"]), str(row["category"]), where=str(row["source"]))
            owners[owner] += chunk.size_bytes


def _find_similar_instant(analysis: Analysis, wanted: Counter[int]) -> int:
    """Return the instant of the steady step whose live sizes differ least from ``wanted``, in bytes."""
    rows, first, last = analysis.rows, analysis.first, analysis.last
    differences = np.zeros(last - first + 1)
    for size_bytes, same in rows.groupby("requested_bytes"):
        change = np.zeros(len(differences) + 1)
        np.add.at(change, np.clip(same["born"].to_numpy() - first, 0, len(differences)), 1)
        np.add.at(change, np.clip(same["dies"].to_numpy() - first, 0, len(differences)), -1)
        alive = change.cumsum()[:-1]
        differences += int(size_bytes) * np.abs(alive - wanted[int(size_bytes)])
    return first + int(differences.argmin())
