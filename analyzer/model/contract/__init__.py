"""The records of run folders and of messages between processes.

Run folders may come from other machines. Every record is checked when it is read: each field has its
type and lies within its limits, so that other code need not repeat the checks.
"""
