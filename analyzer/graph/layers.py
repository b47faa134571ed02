"""From an op's name scope to the layer that made it.

While the step was traced, each layer noted the name scope that it opened: ``resnet50_1/conv1_conv_1``
belongs to the layer ``conv1_conv``. TensorFlow numbers scopes that occur twice, so the scope's name
alone would not tell ``dense_1`` the first layer from ``dense_1`` the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_WRAPPERS = frozenset({"gradient_tape", "gradients"})


@dataclass(frozen=True)
class ScopeTable:
    """Name scopes and who opened them.

    Attributes:
        owners: Scope -> (kind, path); kind is layer, optimizer, metric or loss.
    """

    owners: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def owner_of(self, op_name: str) -> tuple[str, str] | None:
        """Return who opened the innermost known scope around the op; None where no one did.

        A prefix that is no known scope is stepped over: backward ops stand under
        ``gradient_tape/``, and the ops of an inlined function under its caller's name.
        """
        parts = [part for part in op_name.split("/")[:-1] if part not in _WRAPPERS]
        for start in range(len(parts)):
            for end in range(len(parts), start, -1):
                owner = self.owners.get("/".join(parts[start:end]))
                if owner is not None:
                    return owner
        return None

    def layer_of(self, op_name: str) -> str:
        """Return the path of the op's layer, empty where it is in none.

        Without notes (a trace of others) the name scope itself is taken: it is what Keras and
        ``tf.Module`` derive from the layers' names.
        """
        owner = self.owner_of(op_name)
        if owner is not None:
            return owner[1] if owner[0] == "layer" else ""
        if self.owners:
            return ""
        return "/".join(part for part in op_name.split("/")[:-1] if part not in _WRAPPERS)

    def is_optimizer(self, op_name: str) -> bool:
        """Say whether an optimizer opened the innermost known scope around the op."""
        owner = self.owner_of(op_name)
        return owner is not None and owner[0] == "optimizer"
