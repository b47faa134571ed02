"""Since when a buffer is a variable's value, where buffers are made long before they are assigned."""

from analyzer.simulate.predict.buffers.tensor_lists import Buffers
from analyzer.simulate.predict.prepared_step import Schedule
from analyzer.simulate.predict.process_table import Played, find_holdings
from analyzer.simulate.predict.startup import Startup


def test_a_value_follows_the_one_before_it_not_the_one_made_before_it():
    # Buffer 1 is made first, but assigned after buffer 2: as an average that overwrites its variable.
    buffers = Buffers(
        size_bytes=[256, 256, 256],
        born=[-1, 0, 1],
        dies=[2, 9, 5],
        node=[-1, 0, 1],
        output=[-1, 0, -1],
        variable=[0, 0, 0],
        turned=[-1, 4, 1],
        region=["", "output", "temp"],
    )
    schedule = Schedule(
        seed=0,
        threads=1,
        buffers=buffers,
        instants=10,
        steps=((0, 9),),
        resident_bytes=256,
        peak_bytes=768,
        peak_instant=1,
        loops={},
        branches={},
        stranded=(),
        values=(0,),
        held={},
        nodes=(),
    )
    holdings, _ = find_holdings(Played(schedule, Startup(instants=100), {0: 0}, {}))
    assert {holding.row: holding.since for holding in holdings} == {0: None, 1: 105, 2: 102}
