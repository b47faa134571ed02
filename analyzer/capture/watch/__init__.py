"""Watch a program that runs by itself: find its steps, trace a few, and find leaks.

Input: a script, or a block of the user's own process. Output: a run folder as of a capture, with a
``WatchNote`` about all steps. The program's results, output and exit code stay the same.
"""
