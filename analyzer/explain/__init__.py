"""Explain a recording: findings, the verdict, the pool by replay, and the comparison of two.

Input: a recording (``model.recording``). Output: an ``Analysis`` with a verdict and findings, or a
``DiffFile``. Nothing here reads files, runs TensorFlow or formats a page.
"""
