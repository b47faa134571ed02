"""Pytest marks that limit the TensorFlow memory of a test.

    @pytest.mark.limit_memory("2 GiB")     # peak
    @pytest.mark.limit_growth("1 MiB")     # still allocated after the test

Without marks, nothing is imported or changed. With a mark, TensorFlow's CPU allocator becomes the BFC
allocator that a GPU uses, because only that one records each allocation in the profiler's trace.
TensorFlow reads the setting when it creates its devices, after test collection.
"""

import os
from collections.abc import Callable
from functools import partial

import pytest

MARKS = {
    "limit_memory": "limit_memory(size): fail if the peak of TensorFlow's allocator in the test exceeds "
    "this size, such as '2 GiB'",
    "limit_growth": "limit_growth(size): fail if more than this size is still allocated after the test, "
    "such as '1 MiB'",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for text in MARKS.values():
        config.addinivalue_line("markers", text)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the marks; measure the marked tests, with the BFC allocator."""
    for item in session.items:
        if limits := _read_limits(item):
            os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")

            # Not a hook wrapper: its form depends on pluggy's version.
            measured = partial(_run_measured, item, item.runtest, limits)
            item.runtest = measured  # type: ignore[method-assign]


def _run_measured(
    item: pytest.Item,
    run: Callable[[], None],
    limits: dict[str, int],
) -> None:
    """Run and measure a marked test, and fail it if it exceeds a limit."""
    from analyzer.cli.plugins.measured_block import describe_excess, tracing_block
    from analyzer.model.errors import AnalyzerError

    try:
        with tracing_block() as measure:
            run()
    except AnalyzerError as error:
        pytest.fail(
            f"{' and '.join(limits)} cannot be measured: {error}",
            pytrace=False,
        )

    item.user_properties += [
        ("tf_memory_peak_bytes", measure.peak_bytes),
        ("tf_memory_growth_bytes", measure.growth_bytes),
    ]

    excess = describe_excess(
        measure,
        limits.get("limit_memory"),
        limits.get("limit_growth"),
    )
    if excess:
        pytest.fail(excess, pytrace=False)


def _read_limits(item: pytest.Item) -> dict[str, int]:
    """Return the limits of a test in bytes, by mark."""
    marks = {
        name: mark
        for name in MARKS
        if (mark := item.get_closest_marker(name)) is not None
    }
    if not marks:
        return {}

    from analyzer.model.errors import InputError
    from analyzer.model.units import parse_bytes

    limits = {}

    for name, mark in marks.items():
        try:
            (size,) = mark.args
            limits[name] = parse_bytes(size)
        except (ValueError, TypeError, InputError):
            problem = f"{item.nodeid}: {name} takes one size, such as '2 GiB'."
            raise pytest.UsageError(problem) from None

    return limits
