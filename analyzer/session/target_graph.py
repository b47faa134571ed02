"""Open a trace of another program with the graph of the model or step that it is of."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.capture.process.launch import capture
from analyzer.cards.catalogue import look_up_gpu
from analyzer.model.contract.capture_request import (
    CaptureOptions,
    TargetKind,
    TargetSpec,
)
from analyzer.model.errors import InputError
from analyzer.report.result import Result
from analyzer.session.opening import (
    OpenOptions,
    Progress,
    make_result,
)
from analyzer.tracing.parse.logdir import RUN_FILE, find_run_file, find_traces

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from analyzer.tracing.derive.graph_join import SourceGraph
    from analyzer.tracing.measure.measured_recording import Measured


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
        hint = "Name one, such as train.py:build_model."
        raise InputError(
            f"--target {target.text} is a trace, not a model or a step.", hint=hint
        )

    file = _find_host(path, opening.get("host", ""))
    report = opening.get("progress") or (lambda stage, share: None)
    raw = read_trace(file, progress=lambda share: report("reading the trace", share))
    allocator = opening.get("allocator", "")

    def join(source: SourceGraph | None) -> Measured:
        return measure(raw, None, file, named=path, allocator=allocator, source=source)

    device = join(None).recording.device
    if device.kind == "gpu" and not options.gpu:
        gpu = look_up_gpu(device.name)
        card = "t4" if gpu is None else gpu.id  # Grappler needs any GPU
        options = replace(options, gpu=card)

    options = replace(options, device="gpu" if options.gpu else "cpu")
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
    files = [one for one in find_traces(path) if one.name.startswith(host)]
    if len(files) != 1:
        raise InputError(
            f"--target joins the trace of one host, and {len(files)} match {host!r}.",
            hint="Name one with --host.",
        )

    if find_run_file(files[0]) is not None:
        raise InputError(
            f"{path} was captured with its graph.",
            hint="Leave --target out, or open another trace.",
        )

    return files[0]


def _capture_source(
    target: TargetSpec, options: CaptureOptions, report: Progress
) -> SourceGraph:
    from analyzer.tracing.derive.graph_join import SourceGraph, index_note_graph
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
        note = read_run(folder / RUN_FILE)

    index = index_note_graph(note)
    if index is None:
        raise InputError(
            f"{target.text} runs op by op and has no graph.", hint="Leave --target out."
        )

    name = f"the graph of {target.text}"
    return SourceGraph(name, index, note.step.batch_size)
