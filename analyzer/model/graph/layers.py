"""From an op's name scope to the layer that made it.

While the step was traced, each layer noted the name scope that it opened: ``resnet50_1/conv1_conv_1``
belongs to the layer ``conv1_conv``. TensorFlow numbers scopes that occur twice, so the scope's name
alone would not tell ``dense_1`` the first layer from ``dense_1`` the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

_WRAPPERS = frozenset({"gradient_tape", "gradients"})

_DEEPEST: Final = 256
"""Parts of the longest scope that is looked for; Keras' own are of some ten."""

Owner = tuple[str, str]
"""Kind and path of who opened a scope."""


@dataclass
class _Node:
    """A scope in the tree of scopes: who opened it, None where it is only on the way to others."""

    owner: Owner | None = None
    inner: dict[str, _Node] = field(default_factory=dict)


@dataclass(frozen=True)
class ScopeTable:
    """Name scopes and who opened them.

    Attributes:
        owners: Scope -> (kind, path); kind is layer, optimizer, metric or loss.
    """

    owners: Mapping[str, Owner] = field(default_factory=dict)

    @cached_property
    def _root(self) -> _Node:
        root = _Node()
        for scope, owner in self.owners.items():
            node = root
            for part in scope.split("/", _DEEPEST)[:_DEEPEST]:
                node = node.inner.setdefault(part, _Node())
            node.owner = owner
        return root

    @cached_property
    def _found(self) -> dict[str, Owner | None]:
        return {}

    def owner_of(self, op_name: str) -> Owner | None:
        """Return who opened the innermost known scope around the op; None where no one did.

        A prefix that is no known scope is stepped over: backward ops stand under
        ``gradient_tape/``, and the ops of an inlined function under its caller's name.
        """
        scope = op_name.rpartition("/")[0]
        if scope not in self._found:
            self._found[scope] = self._search(scope)
        return self._found[scope]

    def _search(self, scope: str) -> Owner | None:
        """Return who opened the longest known scope at the first place where one begins."""
        parts = [part for part in scope.split("/") if part not in _WRAPPERS]
        for start in range(len(parts)):
            node: _Node | None = self._root
            owner = None
            for part in parts[start : start + _DEEPEST]:
                node = node.inner.get(part) if node is not None else None
                if node is None:
                    break
                owner = node.owner or owner
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
