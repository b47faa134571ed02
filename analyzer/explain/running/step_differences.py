"""Steps that differ: shapes that vary, compiled functions; a batch outside the figures."""

from collections.abc import Iterator, Sequence

import pandas as pd

from analyzer.explain.analysis import Analysis, of_category
from analyzer.explain.buffer_words import describe_ops, in_brackets
from analyzer.explain.questions.peak_tensors import find_batch
from analyzer.model.contract.fields import Category, tensor_bytes
from analyzer.model.graph.buffer_sharing import ITERATOR
from analyzer.model.recording.records import TRIAL_ROLES, Finding, Severity, Step
from analyzer.model.units import format_bytes

# Different sizes of one op's output from which on its shape varies: a last, smaller batch makes two.
_SIZES = 3

# difference between the steps' peaks, as a share of the largest peak
_SPREAD_RATIO = 0.1


def find_varying_shapes(analysis: Analysis) -> Iterator[Finding]:
    """Report steps without trials whose tensor sizes differ, with the range of their peaks."""
    rows = analysis.rows
    watch = analysis.recording.watch
    tried = set(rows.loc[rows["role"].isin(TRIAL_ROLES), "step"].dropna())
    steps = [step for step in analysis.full_steps if step.index not in tried]

    has_several_models = watch and watch.step_objects > 1

    if len(steps) < _SIZES or has_several_models:
        return

    found = analysis.find_step_peaks()
    peaks = [found[step.index].requested_bytes for step in steps]
    low = min(peaks)
    high = max(peaks)

    if high - low < _SPREAD_RATIO * high:
        return

    widths = _find_varying_widths(rows, steps)
    if widths.empty:
        return

    where = "" if watch is None else watch.where
    ops = f"{len(widths)} op{'s' * (len(widths) != 1)}"

    yield Finding(
        id="varying-shapes",
        severity=Severity.MEDIUM,
        title=f"Shapes vary from step to step in {ops}: the steps peak at "
        f"{format_bytes(low)} to {format_bytes(high)}{in_brackets(where)}",
        detail="A chunk freed by a short batch is too small for a longer "
        "one, so the pool grows beyond the need of the largest step, and a tf.function "
        "with fixed shapes is traced again for each shape. Pad to a few lengths "
        "(padded_batch, bucket_by_sequence_length) and drop the last partial batch "
        "(drop_remainder=True).",
        evidence=describe_ops("varies by", widths, rows),
    )


def _find_varying_widths(rows: pd.DataFrame, steps: Sequence[Step]) -> pd.Series:
    """Return the range of each op whose largest buffer varies over the steps, without growing lists."""
    of_steps = rows["step"].isin([step.index for step in steps])
    made = rows[of_steps & (rows["op"] != "")]
    groups = made.groupby(["op", "step"], observed=True)["requested_bytes"]
    sizes = groups.max().unstack("step")

    is_growing = (sizes.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)
    is_varied = sizes.nunique(axis=1) >= _SIZES
    varied = sizes[is_varied & ~is_growing]

    return varied.max(axis=1) - varied.min(axis=1)


def find_recompiled(analysis: Analysis) -> Iterator[Finding]:
    """Report functions that XLA compiles again in every step."""
    count = len(analysis.recording.steps)

    for op, compilations in analysis.recording.compilations.items():
        if compilations < max(count, 2):
            continue

        yield Finding(
            id="compiled-anew",
            severity=Severity.HIGH,
            title=f"XLA compiled {op} {compilations} times in {count} steps",
            detail=(
                "A value that changes in every step is part of the compiled code, so each step "
                "compiles again, as slowly as the first, and the old values stay in the host's "
                "memory. Turn XLA off for this step (jit_compile=False, --no-jit), or use another "
                "optimizer: a frequent cause is an optimizer that divides an Embedding's sparse "
                "gradient and adds the result to a slot (Adadelta, RMSprop with momentum). Adam "
                "does not."
            ),
        )


_LEAST_RATIO = 0.02  # of the peak, of a batch that is named


def describe_uncounted_batch(analysis: Analysis) -> Iterator[str]:
    """Yield a note on a batch of the CPU of which no buffer holds an example.

    The tensors of a Python generator share the memory of aligned arrays (``py_func.cc``).
    """
    recording = analysis.recording
    if recording.device.kind != "cpu" or not recording.kind.ran:
        return

    examples = [
        tensor_bytes(spec.dtype, spec.shape[1:]) or 0
        for op in recording.structure.ops.values()
        for spec in op.outputs
        if op.type == ITERATOR and spec.shape
    ]
    example_bytes = max(examples, default=0)
    batch_bytes = find_batch(analysis) * example_bytes
    inputs = of_category(analysis.rows, Category.INPUT)
    is_held = inputs["requested_bytes"].max() >= example_bytes

    if not is_held and batch_bytes > _LEAST_RATIO * analysis.peak.requested_bytes:
        yield (
            "The batch is not in these figures: TensorFlow reads it in NumPy's memory, "
            "because its address is aligned."
        )
