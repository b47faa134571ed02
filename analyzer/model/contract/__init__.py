"""The records that cross a process or lie in a run folder: their fields, their limits, their reading.

Run folders come from other machines and other people. A record that this room hands out has every field
of its type and within its limits; whoever reads one need not look again.
"""
