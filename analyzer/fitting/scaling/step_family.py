"""The steps of one target that differ in one size alone, made from a few noted ones.

Two notes at two sizes give every axis and every small constant of the graph as a closed form; a note at
a third size says whether the forms hold there. The ops themselves must be the same ones: TensorFlow
folds a constant or not by its bytes, and its memory optimizer rewrites a sum (``AddN``) or not by what
is alive at the peak, so that a graph may be another one at another size. Then there is no family, and
the sentence says what differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from analyzer.fitting.scaling.closed_forms import NoForm, through
from analyzer.fitting.scaling.module_forms import ModuleForms, forms_of
from analyzer.model.contract.graph_note import Op, TensorSpec
from analyzer.simulate.compiler.step_plans import module_of
from analyzer.simulate.predict.predicted_device import target_of
from analyzer.tracing.parse.run_folder import RunNote

_PLACED: Final = frozenset({"analyzer_place", "analyzer_merged_place"})
"""Attributes that say where a node stood, which the optimiser leaves to chance."""

_NAMED: Final = 3

_NUMBERED: Final = re.compile(r"(__(?:inference|forward|backward)_.*)_\d+")


class NotOneFamily(ValueError):  # noqa: N818 - reads as what happened
    """Notes of one target are not of one family; the message says what differs."""


@dataclass(frozen=True, slots=True)
class StepFamily:
    """Noted steps of one target at several sizes, which have the same ops.

    Attributes:
        sizes: Where they were noted, rising.
        notes: The notes, in that order.
        modules: What XLA compiles of the step, in the notes' order of functions.
    """

    sizes: tuple[int, ...]
    notes: tuple[RunNote, ...]
    modules: tuple[ModuleForms, ...] = ()

    def at(self, size: int) -> RunNote:
        """Return the note of the step at a size: the first one with the forms' values in it.

        A noted one is made so too: the optimiser lists the ops of each capture in an order of its own.

        Raises:
            NotOneFamily: a form gives no whole number there.
        """
        if size == self.sizes[0]:
            return self.notes[0]
        points = _Points(self.sizes, size)
        base = self.notes[0]
        try:
            return replace(
                base,
                **{
                    field.name: points.between([getattr(note, field.name) for note in self.notes])
                    for field in fields(base)
                    if field.name in _VARYING
                },
                ops=self._ops(points),
                compiling=self._compiling(points),
            )
        except NoForm as error:
            raise NotOneFamily(f"no closed form: {error}") from None

    def modules_at(self, size: int) -> tuple[bytes, ...]:
        """Return what XLA compiles of the step at a size.

        Raises:
            NotOneFamily: a form gives no whole number there.
        """
        try:
            return tuple(one.at(size) for one in self.modules)
        except NoForm as error:
            raise NotOneFamily(f"no closed form of what XLA compiles: {error}") from None

    def _compiling(self, points: _Points) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Return what lowering asks for; where it asks otherwise at another size, as at the first."""
        try:
            return tuple(points.between([note.compiling for note in self.notes]))
        except (NotOneFamily, NoForm):
            return self.notes[0].compiling

    def _ops(self, points: _Points) -> tuple[Op, ...]:
        others = [{op.name: op for op in note.ops} for note in self.notes[1:]]
        ops = []
        for op in self.notes[0].ops:
            same = [op, *(ops[op.name] for ops in others)]
            outputs = points.specs([one.outputs for one in same])
            attrs = points.attributes([one.attrs for one in same])
            changed = outputs is not op.outputs or attrs is not op.attrs
            ops.append(replace(op, outputs=outputs, attrs=attrs) if changed else op)
        return tuple(ops)

    def check(self, size: int, note: RunNote) -> None:
        """Check that a note taken at a size is the one that the forms give.

        Raises:
            NotOneFamily: it is not.
        """
        _check_same_ops(self.notes[0], note)
        made = self.at(size)
        noted = {op.name: op for op in note.ops}
        wrong = [
            op.name
            for op in made.ops
            if op.outputs != noted[op.name].outputs or not _alike(op.attrs, noted[op.name].attrs)
        ]
        if wrong:
            raise NotOneFamily(
                f"{len(wrong)} ops have another shape at {size} than their closed form "
                f"({', '.join(wrong[:_NAMED])})"
            )
        try:
            for forms, module in zip(self.modules, _modules(note), strict=True):
                forms.check(size, module)
        except ValueError as error:
            raise NotOneFamily(str(error)) from None


_VARYING: Final = frozenset({"step", "inputs", "variables", "births", "sizes"})
"""Fields of a note, beside its ops, that a size may be in."""


def family_of(noted: Mapping[int, RunNote]) -> StepFamily:
    """Return the family of notes by size.

    Raises:
        NotOneFamily: their graphs are not the same, or what XLA compiles of the step is planned by no
            compiler that can be asked anew.
    """
    sizes = tuple(sorted(noted))
    notes = tuple(noted[size] for size in sizes)
    for note in notes[1:]:
        _check_same_ops(notes[0], note)
    family = StepFamily(sizes, notes, _module_forms(sizes, notes))
    family.at(
        2 * sizes[-1] - sizes[0]
    )  # the values themselves differ in no other way than by a form
    return family


def _module_forms(sizes: tuple[int, ...], notes: tuple[RunNote, ...]) -> tuple[ModuleForms, ...]:
    """Return the forms of what XLA compiles.

    Raises:
        NotOneFamily: the step is compiled for a CPU, or stands for a card's whose compiler is not here:
            their plans come with a capture. Or the modules have no forms.
    """
    if not any(note.compiled for note in notes):
        return ()
    has_plan = any(one.plan is not None for note in notes for one in note.compiled)
    if target_of(notes[0]).gpu is None or has_plan:
        raise NotOneFamily("XLA plans the memory of a compiled step anew at each size")
    calls = [[one.ops for one in note.compiled] for note in notes]
    if any(one != calls[0] for one in calls[1:]):
        raise NotOneFamily("XLA compiles other functions at another size")
    try:
        by_size = [_modules(note) for note in notes]
        return tuple(forms_of(sizes, same) for same in zip(*by_size, strict=True))
    except NoForm as error:
        raise NotOneFamily(f"no closed form of what XLA compiles: {error}") from None


def _modules(note: RunNote) -> list[bytes]:
    """Return what XLA compiles of a noted step.

    Raises:
        NotOneFamily: a function could not be lowered.
    """
    if any(one.module is None for one in note.compiled):
        raise NotOneFamily("a function of the step could not be lowered for XLA")
    return [module_of(one) for one in note.compiled]


def _check_same_ops(first: RunNote, other: RunNote) -> None:
    here = {op.name: op for op in first.ops}
    there = {op.name: op for op in other.ops}
    if here.keys() != there.keys():
        lacking = sorted(here.keys() ^ there.keys())
        raise NotOneFamily(
            f"{len(lacking)} ops are in one graph only ({', '.join(lacking[:_NAMED])})"
        )
    for name, op in here.items():
        same = there[name]
        if (op.type, op.inputs, op.device) != (same.type, same.inputs, same.device):
            raise NotOneFamily(f"op {name} is another one")
    if len(first.variables) != len(other.variables) or len(first.births) != len(other.births):
        raise NotOneFamily("the variables are not the same")


def _alike(made: Mapping[str, Any], noted: Mapping[str, Any]) -> bool:
    return all(
        made.get(key) == noted.get(key)
        or _is_value_of_float(made.get(key))
        or _is_one_function([made.get(key), noted.get(key)])
        for key in made.keys() | noted.keys()
        if key not in _PLACED
    )


def _is_value_of_float(value: Any) -> bool:
    """Say whether an attribute is a constant of floats: its bytes count, its values decide nothing."""
    return isinstance(value, float) or (
        isinstance(value, Mapping) and "float" in str(value.get("dtype", ""))
    )


def _is_one_function(values: Sequence[Any]) -> bool:
    """Say whether texts, or records of them, name one function, which each capture numbers anew."""
    if all(isinstance(value, Mapping) for value in values):
        return all(
            value.keys() == {"function"} and isinstance(value["function"], str) for value in values
        ) and _is_one_function([value["function"] for value in values])
    return (
        all(isinstance(value, str) and _NUMBERED.fullmatch(value) for value in values)
        and len({_NUMBERED.sub(r"\1", value) for value in values}) == 1
    )


class _Points:
    """Values at some sizes, and the one at another."""

    def __init__(self, sizes: Sequence[int], wanted: int) -> None:
        self._sizes = sizes
        self._wanted = wanted
        self._known: dict[tuple[int, ...], int] = {}

    def number(self, values: Sequence[int]) -> int:
        """Return the value of the form through whole numbers.

        Raises:
            NoForm: it is none.
        """
        if len(set(values)) == 1:
            return values[0]
        key = tuple(values)
        if key not in self._known:
            form = through(list(zip(self._sizes, values, strict=True)))
            value = form.at(self._wanted)
            if value < 0 <= min(values):
                raise NoForm(f"{value} at {self._wanted}")
            self._known[key] = value
        return self._known[key]

    def specs(self, specs: Sequence[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
        """Return an op's outputs; the very first ones where they are the same at all sizes."""
        if all(one == specs[0] for one in specs[1:]):
            return specs[0]
        return tuple(
            TensorSpec(same[0].dtype, self.between([one.shape for one in same]))
            for same in zip(*specs, strict=True)
        )

    def attributes(self, attrs: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return an op's attributes; the very first ones where they are the same at all sizes."""
        first = attrs[0]
        if all(one == first for one in attrs[1:]):
            return first
        return {
            key: value if key in _PLACED else self.between([one.get(key) for one in attrs])
            for key, value in first.items()
        }

    def between(self, values: Sequence[Any]) -> Any:
        """Return what values become at the size that is wanted: numbers by their form, records by parts.

        Numbers with a fraction are those of the first: no size is one.

        Raises:
            NotOneFamily: they differ in something else than whole numbers.
            NoForm: a form gives no whole number.
        """
        first = values[0]
        if all(value == first for value in values[1:]):
            return first
        if isinstance(first, bool | float | str | None) or type(first) is not type(values[1]):
            return self._unlike(values)
        if isinstance(first, int):
            return self.number(values)
        if isinstance(first, Mapping):
            return self._mapping(values)
        if isinstance(first, list | tuple):
            return self._row(values)
        if hasattr(first, "__dataclass_fields__"):
            names = [field.name for field in fields(first)]
            return replace(
                first, **{n: self.between([getattr(one, n) for one in values]) for n in names}
            )
        return self._unlike(values)

    def _mapping(self, values: Sequence[Mapping[str, Any]]) -> Any:
        first = values[0]
        keys = set(first).intersection(*values[1:])
        lengths = {len(value["values"]) for value in values if "values" in value}
        if len(lengths) > 1 or any(("values" in value) != ("values" in first) for value in values):
            keys.discard("values")  # a constant with as many numbers as the size says
        if set(first) - keys - {"values"}:
            raise NotOneFamily(f"an attribute has other parts ({', '.join(sorted(first))})")
        return {key: self.between([value[key] for value in values]) for key in first if key in keys}

    def _row(self, values: Sequence[Sequence[Any]]) -> Any:
        if len({len(value) for value in values}) > 1:
            raise NotOneFamily(
                f"a list has {len(values[0])} parts at one size and others elsewhere"
            )
        made = [self.between(same) for same in zip(*values, strict=True)]
        return tuple(made) if isinstance(values[0], tuple) else made

    def _unlike(self, values: Sequence[Any]) -> Any:
        if all(isinstance(value, float) for value in values) or _is_one_function(values):
            return values[0]
        raise NotOneFamily(
            f"a value is {str(values[0])[:40]!r} at one size and {str(values[1])[:40]!r} at another"
        )
