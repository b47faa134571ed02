"""The static estimate: a step's allocations from its graph, without running it.

Input: the run note of a capture (graph, variables, device). Output: a ``Recording`` like a measured one,
with a stated range. Restriction: sizes that depend on data count as assumed or as 0.

A **schedule** is one possible execution of a process: which op runs when, and so when each buffer is
allocated and freed. From the graph to the range:

1. ``prepared_step.Prepared`` numbers the nodes and asks the kernel rules for memory plans.
2. ``prediction.play`` plays one schedule from the process's start: ``executor`` runs the nodes,
   says which branch runs and how often a loop does, and ``ledger`` allocates and frees.
3. ``prediction.predict`` plays other outcomes of branches and loops that data decide (``decide``) and
   a few schedules, and replays them in the BFC allocator.
4. ``predicted_recording`` makes the table of the median schedule, and words the range.
"""
