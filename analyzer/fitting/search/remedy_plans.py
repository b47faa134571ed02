"""The remedies that a noted step may have: how each is made, written and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from analyzer.fitting.search.block_partition import best_plan, chain_of, square_root_plan
from analyzer.fitting.search.remedy_code import RemedyCode
from analyzer.model.contract.capture_request import CaptureOptions
from analyzer.tracing.parse.run_folder import RunNote

ACCUMULATED: Final = 4
"""Batches whose gradients are added up."""

_OPTIMIZERS: Final = ("sgd", "lion", "adafactor", "rmsprop", "adagrad")
_OTHERS: Final = ("adadelta", "adam", "adamax", "adamw", "ftrl", "lamb", "nadam")
"""Optimizers that are tried only where they are named: they need no less than Adam."""

_CLASSES: Final = {"sgd": "SGD", "rmsprop": "RMSprop", "adamw": "AdamW"}

NAMES: Final = (
    *("half-batch", "smaller-input", "float32", "mixed-float16", "mixed-bfloat16", "jit", "no-jit"),
    f"accumulate-{ACCUMULATED}",
    *(f"optimizer-{name}" for name in (*_OPTIMIZERS, *_OTHERS)),
    *("remat-full", "remat-activations", "recompute-blocks", "recompute-sqrt"),
    *("freeze", "ema", "no-ema", "clipping", "no-clipping"),
)
"""Every remedy that some step may have, by name."""

_LEAST_UNITS: Final = 3
"""Parts of a chain below which there is nothing to recompute between."""

_IGNORED: Final = re.compile(r"  # type: ignore\[[\w-]+\]")
_PASTED: Final = "# --- what is pasted ---"
_UP_TO: Final = "# --- up to here ---"

_FREEZING: Final = """\
weighted = [layer for layer in model.layers if layer.trainable_variables]  # before compile
for layer in weighted[:-1]:
    layer.trainable = False"""

_GLOBAL_POLICIES: Final = frozenset({"float32", "float64", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyPlan:
    """A remedy that can be tried.

    Attributes:
        id, title, costs: As in ``StepRemedy``.
        code: What a script has otherwise with it.
        kind: Of two remedies of one kind a step can have one: ``batch``, ``precision``, ``optimizer`` …
        effort: What it takes to apply it and to live with it, in arbitrary units: the least is tried
            first where several together are looked for. An option that changes no result is 1,
            another precision 2, a second forward pass 3, another optimizer or batch 4, other data 6, a
            model that learns less 8.
        options: How the remedied step is made.
        is_named_only: Whether it is tried only where it is named.
    """

    id: str
    title: str
    code: RemedyCode
    costs: str
    kind: str
    effort: int
    options: CaptureOptions
    is_named_only: bool = False


def merged(base: CaptureOptions, plans: tuple[RemedyPlan, ...]) -> CaptureOptions:
    """Return how a step is made with several remedies of different kinds.

    Args:
        base: How it is made without any.
        plans: The remedies.
    """
    fields = {}
    for plan in plans:
        for name in ("batch_size", "shapes", "dtype_policy", "jit", "optimizer"):
            if getattr(plan.options, name) != getattr(base, name):
                fields[name] = getattr(plan.options, name)
    remedy = ",".join(plan.options.remedy for plan in plans if plan.options.remedy)
    return replace(base, **fields, remedy=remedy)


def plans_for(
    options: CaptureOptions, note: RunNote, op_by_op: RunNote | None = None
) -> Iterator[RemedyPlan]:
    """Yield the remedies that a noted step may have.

    Args:
        options: How the step is made.
        note: What its capture noted.
        op_by_op: What a capture of the same step without XLA noted, where XLA compiles it: which layers
            follow on each other is read from that; None where no layers are to be recomputed.
    """
    step, batch = note.step, options.open_batch_size
    if batch > 1:
        yield RemedyPlan(
            id="half-batch",
            title=f"A batch of {batch // 2}",
            code=RemedyCode(batch_size=batch // 2),
            costs="noisier gradients",
            kind="batch",
            effort=4,
            options=replace(options, batch_size=batch // 2),
        )
    yield from _inputs(options, note)
    yield from _precisions(options, step.dtype_policy)
    yield RemedyPlan(
        id="no-jit" if step.jit else "jit",
        title="Op by op, without XLA" if step.jit else "Compiled with XLA",
        code=RemedyCode(jit=not step.jit),
        costs="slower" if step.jit else "a compilation at the start",
        kind="xla",
        effort=1,
        options=replace(options, jit=not step.jit),
    )
    if step.mode != "infer":
        yield from _training(options, note, batch)
        yield from _blocks(options, op_by_op or note)


def _precisions(options: CaptureOptions, policy: str) -> Iterator[RemedyPlan]:
    if policy not in _GLOBAL_POLICIES:
        return
    if policy == "float64":
        yield RemedyPlan(
            id="float32",
            title="float32 in place of float64",
            code=_policy_code("float32"),
            costs="29 bits of mantissa",
            kind="precision",
            effort=2,
            options=replace(options, dtype_policy="float32"),
        )
    for kind, cost in (("float16", "loss scaling"), ("bfloat16", "8 bits of mantissa")):
        yield RemedyPlan(
            id=f"mixed-{kind}",
            title=f"Mixed precision, {kind}",
            code=_policy_code(f"mixed_{kind}"),
            costs=cost,
            kind="precision",
            effort=2,
            options=replace(options, dtype_policy=f"mixed_{kind}"),
        )


def _training(options: CaptureOptions, note: RunNote, batch: int) -> Iterator[RemedyPlan]:
    own = _optimizer_of(note)
    if batch >= ACCUMULATED:
        small = batch // ACCUMULATED
        yield RemedyPlan(
            id=f"accumulate-{ACCUMULATED}",
            title=f"{ACCUMULATED} batches of {small}, their gradients added up",
            code=RemedyCode(
                optimizer=own,
                optimizer_option=f"gradient_accumulation_steps={ACCUMULATED}",
                batch_size=small,
            ),
            costs="one more value a weight; batch normalization sees the small batches",
            kind="batch",
            effort=3,
            options=replace(options, batch_size=small, remedy=f"accumulate={ACCUMULATED}"),
        )
    for name in (*_OPTIMIZERS, *_OTHERS):
        kind = _class_of(name)
        if kind != own:
            yield RemedyPlan(
                id=f"optimizer-{name}",
                title=f"{kind} in place of {own}",
                code=RemedyCode(optimizer=kind, is_other=True),
                costs="other hyper-parameters",
                kind="optimizer",
                effort=4,
                options=replace(options, remedy=f"optimizer={name}")
                if note.step.own
                else replace(options, optimizer=name),
                is_named_only=name in _OTHERS,
            )
    for mode, what in (("full", "every layer"), ("activations", "activation functions")):
        yield RemedyPlan(
            id=f"remat-{mode}",
            title=f"Activations recomputed, {what}",
            code=RemedyCode(
                before=f'with keras.RematScope(mode="{mode}"):\n    model = make_model()'
            ),
            costs="a second forward pass" if mode == "full" else "activations computed twice",
            kind="recomputation",
            effort=3,
            options=replace(options, remedy=f"remat={mode}"),
        )
    yield RemedyPlan(
        id="freeze",
        title="Only the last layer with weights is trained",
        code=RemedyCode(model=_FREEZING),
        costs="the layers frozen do not learn",
        kind="freezing",
        effort=8,
        options=replace(options, remedy="freeze=all-but-last"),
    )
    yield from _optimizer_options(options, note, own)


def _blocks(options: CaptureOptions, note: RunNote) -> Iterator[RemedyPlan]:
    """Yield blocks of layers to recompute: the best partition, and the square-root rule's."""
    units = chain_of(note)
    if len(units) < _LEAST_UNITS:
        return
    for name, told, plan in (
        ("recompute-blocks", "the best partition", best_plan(units)),
        ("recompute-sqrt", "the square-root rule", square_root_plan(units)),
    ):
        if plan is None:
            continue
        blocks = "".join(f'    ["{first}", "{last}"],\n' for first, last in plan.blocks)
        yield RemedyPlan(
            id=name,
            title=f"{len(plan.blocks)} blocks of layers recomputed ({told})",
            code=RemedyCode(
                model=f"{pasted_code()}\n\n\n"
                f"model = recompute_blocks(model, [  # before compile\n{blocks}])"
            ),
            costs=f"{plan.operations} operations run twice; batch normalization averages twice",
            kind="recomputation",
            effort=3,
            options=replace(
                options,
                remedy="recompute=" + "|".join(f"{first}>{last}" for first, last in plan.blocks),
            ),
        )


def pasted_code() -> str:
    """Return the code of a model that recomputes blocks, as the capture of the remedy runs it."""
    text = files("analyzer.capture.targets").joinpath("recomputed_blocks.py").read_text("utf-8")
    body = text.split(_PASTED)[1].split(_UP_TO)[0]
    body = _IGNORED.sub("", body).strip()
    return f"from typing import Any\n\nimport keras\nimport tensorflow as tf\n\n\n{body}"


def _optimizer_options(options: CaptureOptions, note: RunNote, own: str) -> Iterator[RemedyPlan]:
    uses_ema = any("average" in variable.path for variable in note.variables)
    yield RemedyPlan(
        id="no-ema" if uses_ema else "ema",
        title="No moving average of the weights" if uses_ema else "A moving average of the weights",
        code=RemedyCode(optimizer=own, optimizer_option=f"use_ema={not uses_ema}"),
        costs="" if uses_ema else "one more value a weight",
        kind="ema",
        effort=2,
        options=replace(options, remedy=f"ema={'off' if uses_ema else 'on'}"),
        is_named_only=not uses_ema,
    )
    yield RemedyPlan(
        id="no-clipping",
        title="Gradients not clipped",
        code=RemedyCode(
            optimizer=own, optimizer_option="clipnorm=None, clipvalue=None, global_clipnorm=None"
        ),
        costs="larger updates where gradients are",
        kind="clipping",
        effort=2,
        options=replace(options, remedy="clip=off"),
        is_named_only=True,
    )
    yield RemedyPlan(
        id="clipping",
        title="Gradients clipped by their norm over all",
        code=RemedyCode(optimizer=own, optimizer_option="global_clipnorm=1.0"),
        costs="a scaled copy of the gradients",
        kind="clipping",
        effort=2,
        options=replace(options, remedy="clip=on"),
        is_named_only=True,
    )


def _inputs(options: CaptureOptions, note: RunNote) -> Iterator[RemedyPlan]:
    """Yield smaller inputs, where the target takes them: what ``--shape`` gave, or an application's."""
    shapes = dict(options.shapes)
    is_application = note.target is not None and note.target.kind == "application"
    if not shapes and is_application and note.inputs and note.inputs[0].shape:
        shapes = {"": tuple(note.inputs[0].shape[1:])}
    smaller = {name: _halved(shape) for name, shape in shapes.items()}
    if smaller == shapes:
        return
    told = " ".join(
        f"{name + '=' if name else ''}{','.join(map(str, shape))}"
        for name, shape in smaller.items()
    )
    yield RemedyPlan(
        id="smaller-input",
        title=f"Inputs half as long a side ({told})",
        code=RemedyCode(options=" ".join(("#", *(f"--shape {each}" for each in told.split(" "))))),
        costs="less detail, or less context",
        kind="input",
        effort=6,
        options=replace(options, shapes=smaller),
    )


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with its sides halved: all but the last axis, or the only one."""
    if len(shape) < 2:
        return tuple(max(axis // 2, 1) for axis in shape)
    return (*(max(axis // 2, 1) for axis in shape[:-1]), shape[-1])


def _policy_code(policy: str) -> RemedyCode:
    return RemedyCode(
        before=f'keras.config.set_dtype_policy("{policy}")  # before the model is made'
    )


def _optimizer_of(note: RunNote) -> str:
    """Return the class of a step's optimizer: as it is noted, else by the paths of its variables."""
    if note.step.optimizer:
        return note.step.optimizer
    heads = {variable.path.split("/")[0] for variable in note.variables}
    known = next((name for name in (*_OPTIMIZERS, *_OTHERS) if name in heads), "adam")
    return _class_of(known)


def _class_of(name: str) -> str:
    return _CLASSES.get(name, name.capitalize())
