"""A made-up training run of any size, with its report.

Resident parameters and slots, then steps of a forward and a backward pass: each layer's activation is
kept until its backward op has read it. Sizes come from a fixed seed. Nothing is measured here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.explain.all_findings import collect
from analyzer.explain.analysis import analyse
from analyzer.model.contract.fields import Category
from analyzer.model.contract.report_file import ReportFile, plain_report
from analyzer.model.contract.run_note import Op, StepConfig, TargetNote, TensorSpec
from analyzer.model.graph.graph_index import build_graph_index
from analyzer.model.recording.records import (
    ALLOCATIONS,
    EVENTS,
    Device,
    Kind,
    Recording,
    Step,
    conform,
)
from analyzer.report.document import build_document

ALLOCATOR = "bfc"
STEPS = 3


@dataclass
class Made:
    """A recording and the document about it."""

    recording: Recording
    report: ReportFile

    @property
    def document(self) -> dict[str, Any]:
        return plain_report(self.report)


class _Tape:
    """Events in order, and the buffers that they make, placed at the first gap that is free."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.events: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self.time_ps = 0
        self.in_use = 0
        self.free: dict[int, list[int]] = {}
        self.top = 0x7F00_0000_0000
        self.grown = False

    def allocate(
        self, op: str, requested: int, category: Category, **facts: Any
    ) -> int:
        chunk = -(-requested // 256) * 256
        if requested > 2_000_000 and len(self.buffers) % 7 == 0:
            chunk += chunk // 3 // 256 * 256
        free = self.free.get(chunk)
        if free:
            address = free.pop()
        else:
            address, self.top = self.top, self.top + chunk
            if not self.grown and len(self.buffers) >= 400:
                # The pool grows by a second range of addresses.
                self.top, self.grown = self.top + (64 << 20), True
        self._event(1, address, requested, chunk, op)
        self.buffers.append(
            {
                "address": address,
                "requested_bytes": requested,
                "allocated_bytes": chunk,
                "born": len(self.events) - 1,
                "dies": None,
                "op": op,
                "category": category.value,
                "born_ps": self.time_ps,
                **facts,
            }
        )
        return len(self.buffers) - 1

    def release(self, buffer: int) -> None:
        row = self.buffers[buffer]
        self._event(
            -1,
            row["address"],
            row["requested_bytes"],
            row["allocated_bytes"],
            row["op"],
        )
        row["dies"], row["dies_ps"] = len(self.events) - 1, self.time_ps
        self.free.setdefault(row["allocated_bytes"], []).append(row["address"])

    def _event(
        self, kind: int, address: int, requested: int, chunk: int, op: str
    ) -> None:
        self.time_ps += int(self.random.integers(200_000, 9_000_000))
        self.in_use += kind * chunk
        self.events.append(
            {
                "time_ps": self.time_ps,
                "kind": kind,
                "address": address,
                "requested_bytes": requested,
                "allocated_bytes": chunk,
                "in_use_bytes": self.in_use,
                "op": op if kind > 0 else "",
            }
        )


def make_recording(
    n_events: int = 300,
    *,
    seed: int = 0,
    scale: float = 1.0,
    suffix: str = "",
    **changes: Any,
) -> Made:
    """Return a run of about ``n_events`` events.

    Args:
        n_events: Events wanted; the run has a few more or fewer.
        seed: Of the sizes.
        scale: Factor of the activations, as another batch size has.
        suffix: Put behind every layer's name, for hostile names.
        changes: Fields of the recording to replace: kind, device, warnings, error.
    """
    tape = _Tape(seed)
    n_layers = max(3, n_events // (STEPS * 8 + 3))
    ops: list[Op] = []
    layers = [f"model/block{i // 6}/conv{i}{suffix}" for i in range(n_layers)]
    sizes = [int(tape.random.lognormal(13.6, 1.1)) // 4 * 4 + 512 for _ in layers]
    weights = [int(tape.random.lognormal(12.4, 1.2)) // 4 * 4 + 256 for _ in layers]
    for layer, weight in zip(layers, weights, strict=True):
        tape.allocate(
            f"{layer}/kernel/Initializer",
            weight,
            Category.PARAMETER,
            layer=layer,
            variable=f"{layer}/kernel",
            dtype="float32",
            shape=f"[{weight // 4}]",
        )
        for slot in ("m", "v"):
            tape.allocate(
                "zeros",
                weight,
                Category.OPTIMIZER_STATE,
                layer=layer,
                variable=f"adam/{layer}/kernel/{slot}",
                dtype="float32",
                shape=f"[{weight // 4}]",
            )
    steps = [
        _step(tape, ops, index, layers, sizes, weights, scale) for index in range(STEPS)
    ]
    return _finish(tape, ops, steps, changes)


def _step(
    tape: _Tape,
    ops: list[Op],
    index: int,
    layers: list[str],
    sizes: list[int],
    weights: list[int],
    scale: float,
) -> Step:
    first, start_ps = len(tape.events), tape.time_ps
    batch = tape.allocate(
        "IteratorGetNext",
        int(3_000_000 * scale) // 4 * 4,
        Category.INPUT,
        step=index,
        dtype="float32",
        shape="[32, 64, 64, 3]",
        tensor="IteratorGetNext:0",
    )
    kept = []
    for place, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        forward, backward = f"{layer}/Conv2D", f"gradients/{layer}/grad"
        requested = int(size * scale) // 4 * 4
        scratch = tape.allocate(
            forward,
            requested // 3 + 16,
            Category.TEMPORARY,
            step=index,
            layer=layer,
            op_type="Conv2D",
            region="temp",
            source=f"model.py:{20 + place}",
        )
        kept.append(
            tape.allocate(
                forward,
                requested,
                Category.ACTIVATION,
                step=index,
                layer=layer,
                op_type="Conv2D",
                region="output",
                dtype="float32",
                shape=f"[32, {requested // 128}]",
                tensor=f"{forward}:0",
                source=f"model.py:{20 + place}",
            )
        )
        tape.release(scratch)
        if index == 0:
            before = (f"{layers[place - 1]}/Conv2D:0",) if place else ()
            spec = TensorSpec("float32", (32, requested // 128))
            source = f"model.py:{20 + place}"
            ops.append(Op(forward, "Conv2D", before, outputs=(spec,), source=source))
            ops.append(
                Op(backward, "Conv2DBackpropInput", (f"{forward}:0",), source=source)
            )
    if index == 0:
        ops.append(Op("loss", "Sum", (f"{layers[-1]}/Conv2D:0",)))
    flowing = tape.allocate(
        "loss/grad",
        4096,
        Category.GRADIENT,
        step=index,
        dtype="float32",
        shape="[1024]",
        tensor="loss/grad:0",
    )
    for place in reversed(range(len(layers))):
        layer, backward = layers[place], f"gradients/{layers[place]}/grad"
        weight = tape.allocate(
            backward,
            weights[place],
            Category.GRADIENT,
            step=index,
            layer=layer,
            op_type="Conv2DBackpropFilter",
            dtype="float32",
            shape=f"[{weights[place] // 4}]",
            tensor=f"{backward}:1",
            source=f"model.py:{20 + place}",
        )
        onward = tape.allocate(
            backward,
            int(sizes[place] * scale) // 4 * 4,
            Category.GRADIENT,
            step=index,
            layer=layer,
            op_type="Conv2DBackpropInput",
            dtype="float32",
            shape="[32, 128]",
            tensor=f"{backward}:0",
            source=f"model.py:{20 + place}",
        )
        tape.release(kept[place])
        tape.release(flowing)
        flowing = onward
        tape.release(weight)
    tape.release(flowing)
    tape.release(batch)
    return Step(
        index=index,
        number=index,
        first=first,
        last=len(tape.events) - 1,
        start_ps=start_ps,
        end_ps=tape.time_ps,
    )


def _finish(
    tape: _Tape, ops: list[Op], steps: list[Step], changes: dict[str, Any]
) -> Made:
    n_events = len(tape.events)
    events = pd.DataFrame(tape.events)
    events = events.assign(
        allocator=ALLOCATOR,
        available_bytes=0,
        peak_in_use_bytes=events["in_use_bytes"].cummax(),
        fragmentation=0.0,
        run_id=0,
        region="",
        dtype="",
        shape="",
        thread=0,
    )
    table = pd.DataFrame(tape.buffers)
    table["dies"] = table["dies"].fillna(n_events).astype("int64")
    table = table.assign(allocator=ALLOCATOR, run_id=0, role="")
    for name, dtype in ALLOCATIONS.items():
        if name not in table:
            table[name] = pd.Series(
                pd.NA if dtype == "Int64" else "", index=table.index
            )
        if dtype == "category":
            table[name] = table[name].fillna("")
    recording = Recording(
        **{
            "kind": Kind.TRACE,
            "target": TargetNote(**changes.pop("target", {"name": "made up"})),
            "device": Device(
                kind="gpu",
                name="GPU:0",
                memory_limit_bytes=int(events["in_use_bytes"].max() * 1.3),
            ),
            "step_config": StepConfig(
                mode="train", jit=False, batch_size=32, optimizer="adam"
            ),
            "events": conform(events, EVENTS),
            "allocations": conform(table, ALLOCATIONS),
            "allocator": ALLOCATOR,
            "steps": tuple(steps),
            "structure": build_graph_index(ops),
            "versions": {"tensorflow": "2.21.0", "analyzer": "0.1.0"},
            **changes,
        }
    )
    return Made(recording, build_document(collect(analyse(recording))))
