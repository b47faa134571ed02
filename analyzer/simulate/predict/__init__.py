"""Prediction of a step's allocations from its graph, without running it.

Input: the run note of a capture (graph, variables, device). Output: a ``Recording`` like a measured one,
with a stated range. Restriction: sizes that depend on data count as assumed or as 0.

A **schedule** is one possible execution of the step: which op runs when, and so when each buffer is
allocated and freed. TensorFlow's choice differs from process to process, so a prediction plays many
schedules, each from a seed. From the graph to the range:

1. ``prepared_step.prepare`` numbers the nodes and rebuilds their edges (``graph/edges``), asks the
   kernel rules for the memory plan of each node (``graph/kernel_calls``) and estimates durations.
2. ``prepared_step.play`` plays one schedule. The seed selects the **edge order**, the order in which a
   node starts its successors. The executor then runs the nodes on one thread or on several in simulated
   time (``executor/threads``), and through branches and loops (``executor/control_flow``). The ledger
   (``buffers/reference_counts``) allocates a buffer for each output and frees it with its last
   reference.
3. ``sampling.predict`` plays up to 61 schedules. The median peak is the requested figure; the narrowest
   95 % of the peaks, the one-thread schedule and the fully overlapped one are the requested range.
   ``uncertainty/decisions`` adds other outcomes of branches and loops that data decide.
4. ``sampling.choose`` finds the chunks. It plays a few schedules from the start of the process:
   the allocations before the first step (``startup``), then the steps (``process_table``). The other
   schedules continue one of these. The BFC allocator replays all of them, which gives the allocated
   range and the memory limits under which some and all schedules run. Near both medians is the
   schedule that reports show.
5. ``predicted_recording`` turns the shown schedule into the table of a recording,
   and ``uncertainty/stated_range`` words the range. On a card,
   ``uncertainty/gpu_uncertainty`` adds what only the card decides.
"""

from analyzer.simulate.predict.prepared_step import Owner
from analyzer.simulate.predict.sampling import Prediction, predict

__all__ = ["Owner", "Prediction", "predict"]
