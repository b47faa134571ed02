"""What to write for a remedy, or for several at once: parts of a script, in the order of a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyCode:
    """The parts of a script that a remedy changes; empty where it leaves one alone.

    Attributes:
        before: Lines before the model is made.
        model: Lines about the model, before it is compiled.
        optimizer: Class of the optimizer, where the remedy says anything about it.
        is_other: Whether that class takes the place of the step's own.
        optimizer_option: An option of the optimizer.
        jit: Whether XLA compiles the step; None where the remedy does not say.
        batch_size: The batch; None where it stays.
        options: What the command takes.
    """

    before: str = ""
    model: str = ""
    optimizer: str = ""
    is_other: bool = False
    optimizer_option: str = ""
    jit: bool | None = None
    batch_size: int | None = None
    options: str = ""


def written(parts: Sequence[RemedyCode], *, is_own_step: bool) -> str:
    """Return what to write for remedies of different kinds: each call once, with all that they change.

    Args:
        parts: Of each remedy.
        is_own_step: Whether the step is the user's own, without ``compile`` and ``fit``.
    """
    lines = [part.before for part in parts] + [part.model for part in parts]
    classes = [part.optimizer for part in parts if part.is_other]
    classes += [part.optimizer for part in parts if part.optimizer]
    jit = next((part.jit for part in parts if part.jit is not None), None)
    batch_size = next((part.batch_size for part in parts if part.batch_size is not None), None)
    changes = []
    if classes:
        given = ["...", *(part.optimizer_option for part in parts if part.optimizer_option)]
        lines.append(f"optimizer = keras.optimizers.{classes[0]}({', '.join(given)})")
        changes.append("optimizer=optimizer")
    if jit is not None:
        changes.append(f"jit_compile={jit}")
    if is_own_step:
        lines.append("" if jit is None else f"step = tf.function(step, jit_compile={jit})")
        lines.append("" if batch_size is None else f"dataset = dataset.batch({batch_size})")
    else:
        lines.append(f"model.compile({', '.join((*changes, 'loss=...'))})" if changes else "")
        lines.append("" if batch_size is None else f"model.fit(..., batch_size={batch_size})")
    return "\n".join(line for line in (*lines, *(part.options for part in parts)) if line)
