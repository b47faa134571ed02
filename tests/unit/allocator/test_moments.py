"""The moments inside a compiled step (events of kind 0) are none of the allocator's doings."""

import numpy as np
import pandas as pd
from workloads import from_events, sample

from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.allocator.replay import compare


def with_moments(events: pd.DataFrame, every: int = 7) -> pd.DataFrame:
    """Return the events with a moment after every seventh one."""
    source = np.sort(np.r_[np.arange(len(events)), np.arange(0, len(events), every)])
    grown = events.iloc[source].reset_index(drop=True)
    return grown.assign(
        kind=np.where(np.diff(source, prepend=-1) == 0, 0, grown["kind"]).astype("int8")
    )


def test_a_replay_passes_them_over() -> None:
    events = sample("graph")
    more = with_moments(events)
    plain, _ = compare(from_events(events), events, BfcOptions.cpu())
    grown, _ = compare(from_events(more), more, BfcOptions.cpu())
    assert plain.is_exact
    assert grown.is_exact
    assert grown.events == plain.events
    ours, theirs = from_events(with_moments(events)), from_events(events)
    assert np.array_equal(ours.request, theirs.request)
    assert ours.instant[-1] > theirs.instant[-1], (
        "instants are rows of the table that was given"
    )
