"""``analyze device``: TensorFlow's figures, its pool and the driver's figure of a process side by side.

    NVML ──────────┐
    TensorFlow ────┼─> figures ──> device_account (the JSON) ──> device_telling (text)
    /proc ─────────┘

``device_reading.py`` reads in this process or in one of ours; ``switches.py`` says what is set.
"""
