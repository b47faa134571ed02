"""The child process that captures a step.

Input: a target and its options. Output: a run folder, whole or not at all, or a typed error.
The child runs under a supervisor, so that no process survives its command; its end is always explained.
"""
