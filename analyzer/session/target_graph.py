"""Open a trace of another program with the graph of the model or step that it is of."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.capture.process.launch import capture
from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.choice import Category
from analyzer.model.contract.capture_request import (
    CaptureOptions,
    LikeNote,
    MeasuredConvolution,
    TargetKind,
    TargetSpec,
)
from analyzer.model.errors import InputError
from analyzer.model.recording.schema import COPY_ROLE, TRIAL_ROLE
from analyzer.report.result import Result
from analyzer.session.opening import (
    OpenOptions,
    Progress,
    is_estimate,
    make_result,
    open_result,
)
from analyzer.simulate.predict.predicted_device import CONVOLUTION_KINDS
from analyzer.tracing.parse.logdir import RUN_FILE, find_run_file, find_traces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.model.recording.records import Recording
    from analyzer.tracing.derive.graph_join import SourceGraph
    from analyzer.tracing.measure.measured_recording import Measured
    from analyzer.tracing.parse.run_folder import RunNote


def open_with_target(
    path: Path,
    target: TargetSpec,
    options: CaptureOptions,
    **opening: Unpack[OpenOptions],
) -> Result:
    """Explain one host's trace with the graph of a target, joined by op name.

    The target is built without memory, on a stand-in for the trace's card and with the batch size of
    the trace unless ``options`` has one. An InputError says that the trace has a graph of its own.
    """
    from analyzer.tracing.measure.measured_recording import measure
    from analyzer.tracing.parse.xplane import read_trace

    if target.kind is TargetKind.TRACE:
        raise InputError(
            f"--target {target.text} is a trace, not a model or a step.",
            hint="Name one, such as train.py:build_model.",
        )

    file = _find_host(path, opening.get("host", ""))
    report = opening.get("progress") or (lambda stage, share: None)
    raw = read_trace(file, progress=lambda share: report("reading the trace", share))
    allocator = opening.get("allocator", "")

    def join(source: SourceGraph | None) -> Measured:
        return measure(raw, None, file, named=path, allocator=allocator, source=source)

    device = join(None).recording.device
    card = options.gpu
    if device.kind == "gpu" and not card:
        gpu = look_up_gpu(device.name)
        card = "t4" if gpu is None else gpu.id  # Grappler needs any GPU

    options = replace(options, gpu=card, device="gpu" if card else "cpu")
    if options.jit is None and not raw.ran_xla:
        options = replace(options, jit=False)

    source = _capture_source(target, options, report)
    measured = join(source)
    batch_size = None if measured.join is None else measured.join.batch_size

    if options.batch_size is None and batch_size not in (None, source.batch_size):
        options = replace(options, batch_size=batch_size)
        measured = join(_capture_source(target, options, report))

    report("explaining", 1.0)
    return make_result(
        measured, path, opening.get("what_if"), search=opening.get("search", True)
    )


def _find_host(path: Path, host: str) -> Path:
    """Return the trace file of a host, which must have no graph of its own."""
    files = find_traces(path)
    if find_run_file(files[0]) is not None:
        raise InputError(
            f"{path} was captured with its graph.",
            hint="Leave --target out, or open another trace.",
        )

    chosen = [file for file in files if file.name.startswith(host)]
    if len(chosen) != 1:
        raise InputError(
            f"--target joins the trace of one host, and {len(chosen)} match {host!r}.",
            hint=f"Add --host with one of {', '.join(file.name.split('.xplane')[0] for file in files)}.",
        )

    return chosen[0]


def _capture_source(
    target: TargetSpec, options: CaptureOptions, report: Progress
) -> SourceGraph:
    from analyzer.tracing.parse.run_folder import read_run

    with tempfile.TemporaryDirectory(prefix="analyze-") as place:
        folder = capture(
            target,
            options,
            Path(place) / target.name,
            force=False,
            progress=lambda stage, share: report(stage, 0.8 * share),
            kind="static",
        )
        source = _make_source(read_run(folder / RUN_FILE), target.text)

    if source is None:
        raise InputError(
            f"{target.text} runs op by op and has no graph.", hint="Leave --target out."
        )

    return source


def _make_source(note: RunNote, name: str) -> SourceGraph | None:
    from analyzer.tracing.derive.graph_join import SourceGraph, index_note_graph

    index = index_note_graph(note)
    if index is None:
        return None
    return SourceGraph(f"the graph of {name}", index, note.step.batch_size)


def open_with_estimate(path: Path, folder: Path) -> Result:
    """Explain a trace; one without a graph of its own is joined with that of an estimate's folder."""
    from analyzer.tracing.measure.measured_recording import open_measured
    from analyzer.tracing.parse.run_folder import read_run

    source = _make_source(read_run(folder / RUN_FILE), str(folder))

    if (
        source is None
        or is_estimate(path)
        or find_run_file(find_traces(path)[0]) is not None
    ):
        return open_result(path)

    return make_result(open_measured(path, source=source), path)


def read_like(path: Path, gpu: str = "") -> LikeNote:
    """Return the card, the limit and the workspaces of a trace; an empty ``gpu`` is the trace's own."""
    from analyzer.tracing.measure.measured_recording import open_measured

    measured = open_measured(path)
    recording, device = measured.recording, measured.recording.device
    card = look_up_gpu(gpu or device.name)

    if card is None:
        raise InputError(
            f"{path} names no card of the catalogue ({device.name}).",
            hint="Add --gpu NAME; `analyze gpus` lists all cards.",
        )

    convolutions = tuple(_find_convolutions(recording))
    batches = Counter(one.shape[0] for one in convolutions if one.kind == "forward")
    return LikeNote(
        trace=str(path),
        card=card.id,
        memory_limit_bytes=device.memory_limit_bytes,
        batch_size=batches.most_common(1)[0][0] if batches else None,
        convolutions=convolutions,
        is_op_by_op=not measured.ran_xla,
    )


def _find_convolutions(recording: Recording) -> list[MeasuredConvolution]:
    """Return the convolutions of the last step with any, in order of their first request."""
    table = recording.allocations
    table = table[
        (table["allocator"] == recording.allocator)
        & table["op_type"].isin(list(CONVOLUTION_KINDS))
        & (table["born"] >= 0)
    ]
    if table["step"].notna().any():
        table = table[table["step"] == table["step"].max()]

    found = []
    for op, rows in table.sort_values("born").groupby("op", observed=True, sort=False):
        shapes = rows.loc[rows["region"] == "output", "shape"]
        shape = str(next(iter(shapes), "")).strip("[]").split(",")
        if not all(axis.isdecimal() for axis in shape):
            continue

        is_other = rows["role"].isin([TRIAL_ROLE, COPY_ROLE])
        scratch = rows[(rows["category"] == Category.WORKSPACE.value) & ~is_other]
        scratch = scratch.sort_values("requested_bytes")
        role = str(scratch["role"].iloc[-1]) if len(scratch) else ""
        found.append(
            MeasuredConvolution(
                op=str(op),
                kind=CONVOLUTION_KINDS[str(rows["op_type"].iloc[0])],
                shape=tuple(map(int, shape)),
                workspace_bytes=int(scratch["requested_bytes"].max())
                if len(scratch)
                else 0,
                algorithm=role.partition(", ")[2],
            )
        )

    return found
