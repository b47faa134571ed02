"""The child process that captures a step.

Input: a target and its options. Output: a run folder, whole or not at all, or a typed error.
The child leads a process group, which ends with the command; its end is always explained.
"""
