"""A ledger for kernels by hand, without a graph."""

from dataclasses import replace

from analyzer.simulate.predict.buffers.reference_counts import Ledger
from analyzer.simulate.predict.graph.kernel_calls import Kernels
from analyzer.simulate.predict.prepared_step import prepare


def make_ledger(*plans):
    handles = [-1] * len(plans)
    kernels = Kernels(plans=list(plans), handles=handles, arguments={}, unmodelled=[], misfits={})
    empty = prepare([], [], threads=1)
    return Ledger(replace(empty, kernels=kernels, variables=tuple(handles)))
