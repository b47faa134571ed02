"""A replay that differs from its trace supports no need."""

from builders import sample_folder, with_recording

from analyzer.explain.pool_facts import add_pool
from analyzer.model.contract.child_messages import WhatIf
from analyzer.session.opening import open_result

MIB = 1 << 20


def test_no_need_is_searched_for_if_the_replay_differs() -> None:
    plain = open_result(sample_folder("cnn"), search=False).analysis
    known = add_pool(plain, WhatIf(), search=True)
    assert known.replay_check.is_exact
    assert known.safe_limit_bytes is not None

    # GIVEN each address of the trace is another one
    events = plain.recording.events
    moved = events.assign(address=events["address"][::-1].to_numpy())
    unlike = with_recording(plain, events=moved)
    # WHEN the pool is computed again
    found = add_pool(unlike, WhatIf(), search=True)
    # THEN there is no least limit, unless the user asks about a limit
    assert not found.replay_check.is_exact
    assert found.safe_limit_bytes is None

    asked = add_pool(unlike, WhatIf(memory_limit_bytes=900 * MIB), search=True)
    assert asked.safe_limit_bytes is not None
