"""Prediction of a step's allocations from its graph, without running it.

Input: the run note of a capture (graph, variables, device). Output: a ``Recording`` like a measured one,
with a stated range. Restriction: sizes that depend on data count as assumed or as 0.

A **schedule** is one possible execution of the step: which op runs when, and so when each buffer is
allocated and freed. TensorFlow's choice differs from process to process, so a prediction plays many
schedules, each from a seed. From the graph to the range:

1. ``prepared_step.prepare`` numbers the nodes, rebuilds their edges (``graph/edges``), asks the kernel
   rules for memory plans (``graph/kernel_calls``) and estimates durations.
2. ``prepared_step.play`` plays one schedule. The seed selects the order in which a node starts its
   successors. The executor (``executor/``) runs the nodes on one or several threads; the ledger
   (``buffers/``) allocates a buffer for each output and frees it with its last reference.
3. ``sampling.predict`` plays up to 61 schedules: their median, range, and bounds are the requested
   figures. ``uncertainty/decisions`` adds other outcomes of branches and loops that data decide.
4. ``sampling.choose`` plays a few schedules from the start of the process (``startup``, then
   ``process_table``); others continue these. The BFC allocator replays all, which gives the allocated
   range and the memory limits. Near both medians is the schedule that reports show.
5. ``predicted_recording`` makes the table of a recording; ``uncertainty`` words the range.
"""
