"""Build the report of an analysis: typed records, which are the JSON, version 1."""

from collections.abc import Iterator

from msgspec.structs import asdict

from analyzer.explain.analysis import Analysis, card_uses
from analyzer.explain.buffer_words import buffer_row, why_alive
from analyzer.explain.questions.out_of_memory import failure_of
from analyzer.explain.questions.peak_tensors import peak_op
from analyzer.explain.running.data_held import program_figures
from analyzer.explain.trace_integrity import find_counter_peak, trust_figures
from analyzer.explain.verdict import FITS
from analyzer.model.contract import report_file
from analyzer.model.contract.child_messages import ASSUMPTIONS
from analyzer.model.contract.fields import Category, TwoSizes
from analyzer.model.contract.report_file import ReportFile
from analyzer.model.contract.run_note import SimulatedCardNote
from analyzer.model.recording.records import (
    REPORTED,
    TRIAL_ROLE,
    XLA_TRIAL_ROLE,
    Step,
    find_peak,
)
from analyzer.report.answer import add_answer


def build_document(analysis: Analysis) -> ReportFile:
    """Return the report of one analysis."""
    recording = analysis.recording
    watch = recording.watch
    verdict = analysis.verdict
    ever = analysis.peak_ever
    requested, allocated = analysis.line.at(analysis.first - 1)

    report = ReportFile(
        **{name: getattr(recording, name) for name in REPORTED},
        step=recording.step_config,
        peak=_peak(analysis),
        peak_ever=report_file.PeakEver(
            requested_bytes=ever.requested_bytes,
            allocated_bytes=ever.allocated_bytes,
            pool_bytes=analysis.pool_ever_bytes,
            phase=_highest_phase(analysis),
            since_start_bytes=find_counter_peak(recording),
        ),
        steps=tuple(_steps(analysis)),
        resident=TwoSizes(requested_bytes=requested, allocated_bytes=allocated),
        categories_at_peak=report_file.CategoryBytes(**analysis.categories),
        layers=tuple(layer_rows(analysis)),
        ops=tuple(op_rows(analysis)),
        tensors_at_peak=tensor_rows(analysis),
        pool_timeline=analysis.pool_timeline,
        verdict=verdict,
        fits=FITS.get(verdict.outcome),
        what_if=analysis.what_if,
        findings=analysis.findings,
        uncertainty=recording.uncertainty,
        integrity=trust_figures(analysis),
        simulated_card=_describe_simulated_card(recording.simulated_run),
        cards=tuple(card_uses(analysis)),
        failure=failure_of(analysis),
        program=None if watch is None else program_figures(recording, watch),
    )

    return add_answer(report)


def _describe_simulated_card(
    run: SimulatedCardNote | None,
) -> report_file.SimulatedCardNotice | None:
    """Return the notice about simulated cards, with the answers of their libraries."""
    if run is None:
        return None

    return report_file.SimulatedCardNotice(
        cards=run.cards,
        assumed=(
            "no workspace for cuFFT, cuSOLVER and cuSPARSE",
            "the first algorithm that is tried counts as the fastest",
            "values read back from the card are 0, except counts, shapes and finite gradients",
        ),
        settings=tuple(
            report_file.AssumedSetting(
                **asdict(one), value=run.assumed.get(one.name, one.usual)
            )
            for one in ASSUMPTIONS
        ),
    )


def _peak(analysis: Analysis) -> report_file.PeakFigures:
    peak = analysis.peak
    op, layer, source = peak_op(analysis)

    return report_file.PeakFigures(
        requested_bytes=peak.requested_bytes,
        allocated_bytes=peak.allocated_bytes,
        pool_bytes=analysis.pool_bytes,
        op=op,
        layer=layer,
        source=source,
        step=None if analysis.step is None else analysis.step.index,
        instant=peak.requested_instant,
        allocated_instant=peak.allocated_instant,
    )


def _highest_phase(analysis: Analysis) -> str:
    """Return when the highest allocated peak was reached, in words."""
    recording = analysis.recording
    instant = analysis.peak_ever.allocated_instant
    phase = _phase_at(instant, recording.steps)

    if recording.watch is not None:
        phase = phase.replace("the first step", "the traced steps")

    rows = analysis.rows
    is_alive = (rows["born"] <= instant) & (instant < rows["dies"])
    roles = set(rows.loc[is_alive, "role"])

    if TRIAL_ROLE in roles:
        phase += " by trials of convolution algorithms"
    elif XLA_TRIAL_ROLE in roles:
        phase += ", in XLA's trials of algorithms"

    return phase


def _phase_at(instant: int, steps: tuple[Step, ...]) -> str:
    """Return the step or phase of an instant in words."""
    if not steps:
        return "whole trace"
    if instant < steps[0].first:
        return "before the first step"

    inside = [step for step in steps if step.first <= instant <= step.last]
    if not inside:
        return "between steps"

    last = inside[-1]

    return f"step {last.index if last.number is None else last.number}"


def _steps(analysis: Analysis) -> Iterator[report_file.StepPeak]:
    line = analysis.line

    for step in analysis.recording.steps:
        before = max(step.first - 1, -1)  # all that a step without events has
        peak = find_peak(line, before, max(step.last, before))

        yield report_file.StepPeak(
            index=step.index,
            number=step.number,
            requested_bytes=peak.requested_bytes,
            allocated_bytes=peak.allocated_bytes,
            duration_s=step.duration_s,
            first_instant=step.first,
            last_instant=step.last,
        )


def tensor_rows(analysis: Analysis) -> tuple[report_file.TensorAtPeak, ...]:
    """Return the buffers alive at the requested peak, largest first."""
    alive = analysis.alive.sort_values(
        ["requested_bytes", "born"],
        ascending=[False, True],
        kind="stable",
    )

    end = len(analysis.recording.events)

    return tuple(
        buffer_row(
            row,
            report_file.TensorAtPeak,
            why_alive=why_alive(row, first=analysis.first, end=end),
        )
        for row in alive.to_dict("records")
    )


def op_rows(analysis: Analysis) -> Iterator[report_file.OpBytes]:
    """Yield the bytes of each op in the steady step, and those alive at the peak."""
    rows = analysis.rows[analysis.rows["op"] != ""]
    is_own = analysis.in_step(rows)

    is_alive = rows.index.to_series().isin(analysis.alive.index)
    inside = rows[is_own | is_alive]
    counts = is_own[inside.index].astype(int)
    requested = inside["requested_bytes"] * counts

    work = inside[["op"]].assign(
        requested_bytes=requested,
        allocated_bytes=inside["allocated_bytes"] * counts,
        temporary_bytes=requested.where(inside["category"] == "temporary", 0),
        alive_at_peak_bytes=inside["requested_bytes"].where(is_alive[inside.index], 0),
        allocations=counts,
    )

    sums = work.groupby("op", observed=True).sum()
    sums = sums.sort_values(["alive_at_peak_bytes", "requested_bytes"], ascending=False)
    by_size = inside.sort_values("requested_bytes", ascending=False, kind="stable")
    largest = by_size.drop_duplicates("op").set_index("op")

    for op, sizes in sums.astype(int).to_dict("index").items():
        about = largest.loc[op]

        yield report_file.OpBytes(
            name=str(op),
            type=str(about["op_type"]),
            layer=str(about["layer"]),
            source=str(about["source"]),
            category=Category(about["category"]),
            **sizes,
        )


def layer_rows(analysis: Analysis) -> Iterator[report_file.LayerBytes]:
    """Yield the requested bytes of each layer alive at the peak, by category."""
    kinds = ["layer", "category"]
    sums = analysis.alive.groupby(kinds, observed=True)["requested_bytes"].sum()
    table = sums.unstack("category", fill_value=0)
    totals = table.sum(axis="columns").sort_values(ascending=False, kind="stable")

    for layer, total in totals.items():
        sizes = {str(name): int(size) for name, size in table.loc[layer].items()}
        yield report_file.LayerBytes(
            layer=str(layer),
            **sizes,
            total_bytes=int(total),
        )
