"""Remedies: each a real change of the step, captured and estimated anew; never a rule of thumb."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from analyzer.batch_fit.step_access import BatchCaptures, StepAccess
from analyzer.capture.targets.target_spec import CaptureOptions
from analyzer.errors import CompilerUnavailable, InputError
from analyzer.parse.run_folder import RunNote
from analyzer.scaling.fit_answer import FitAnswer, StepRemedy
from analyzer.scaling.scaled_orders import play_orders
from analyzer.scaling.step_family import StepFamily

_MOST_TOLD: Final = 240
"""Characters of the reason why a remedy cannot be applied."""

ACCUMULATED: Final = 4
"""Batches whose gradients are added up."""

_OPTIMIZERS: Final = {
    "sgd": "one value a weight less for each slot of the other",
    "lion": "another learning rate",
    "adafactor": "another learning rate",
    "rmsprop": "another learning rate",
    "adagrad": "another learning rate",
}
_OTHERS: Final = ("adadelta", "adam", "adamax", "adamw", "ftrl", "lamb", "nadam")
"""Optimizers that are tried only where they are named: they need no less than Adam."""

_CLASSES: Final = {
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adamw": "AdamW",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyPlan:
    """A remedy that can be tried.

    Attributes:
        id, title, code, costs: As in :class:`analyzer.scaling.fit_answer.StepRemedy`.
        options: How the remedied step is made.
    """

    id: str
    title: str
    code: str
    costs: str
    options: CaptureOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNeed:
    """What a step needs: its peak, and whether it runs under the limit (None without one)."""

    requested_bytes: int
    allocated_bytes: int
    fits: bool | None


def remedies_of(
    access: StepAccess,
    options: CaptureOptions,
    answer: FitAnswer,
    names: Sequence[str],
    threads: int | None,
    report: Callable[[str, float], None],
) -> tuple[StepRemedy, ...]:
    """Return what each remedy saves at the batch wanted or found, the one that saves most first.

    Args:
        access: How the step is captured at a batch.
        options: How the step is made and run.
        answer: The answer, with the batch that was wanted or found and the limit.
        names: Of the remedies to try; empty for all that may save something.
        threads: Inter-op threads to predict for; None for those that a run would have.
        report: Called with the stage and the share done, 0 to 1.
    """
    batch = answer.wanted or max(answer.largest, 1)
    return tried_remedies(
        access, replace(options, batch_size=batch), names, answer.limit_bytes, threads, report
    )


def tried_remedies(
    access: StepAccess,
    options: CaptureOptions,
    names: Sequence[str],
    limit_bytes: int | None,
    threads: int | None,
    report: Callable[[str, float], None],
) -> tuple[StepRemedy, ...]:
    """Capture and estimate a step with each remedy.

    Args:
        access: The step.
        options: How it is made without any; its batch size is that of all.
        names: Of the remedies to try; empty for all that may save something.
        limit_bytes: A limit to say of whether the step then fits; None for none.
        threads: Threads that one op may use; None for this machine's.
        report: Called with the stage and the share done.

    Raises:
        InputError: a name is no remedy's.
    """
    batch = options.wanted_batch
    report("capturing the step as it is", 0.95)
    note, before = _need(access, options, batch, "as-is", limit_bytes, threads)
    plans = _chosen(list(plans_for(options, note)), names)
    found = []
    for number, plan in enumerate(plans):
        report(f"capturing with {plan.id}", 0.95 + 0.05 * number / len(plans))
        try:
            made_with = plan.options.wanted_batch
            _, after = _need(access, plan.options, made_with, plan.id, limit_bytes, threads)
        except (InputError, CompilerUnavailable) as error:
            failed = error.message[:_MOST_TOLD]
            found.append(StepRemedy(id=plan.id, title=plan.title, code=plan.code, failed=failed))
            continue
        found.append(
            StepRemedy(
                id=plan.id,
                title=plan.title,
                code=plan.code,
                costs=plan.costs,
                saves_bytes=before.requested_bytes - after.requested_bytes,
                requested_bytes=after.requested_bytes,
                allocated_bytes=after.allocated_bytes,
                fits=after.fits,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.saves_bytes is None, -(one.saves_bytes or 0))))


def _chosen(plans: Sequence[RemedyPlan], names: Sequence[str]) -> list[RemedyPlan]:
    if not names:
        return [plan for plan in plans if plan.id not in {f"optimizer-{n}" for n in _OTHERS}]
    known = {plan.id: plan for plan in plans}
    for name in names:
        if name not in known:
            raise InputError(
                f"No remedy of this step is called {name!r}.",
                hint=f"There are: {', '.join(known)}.",
            )
    return [known[name] for name in names]


def plans_for(options: CaptureOptions, note: RunNote) -> Iterator[RemedyPlan]:
    """Yield the remedies that a noted step may have.

    Args:
        options: How the step is made.
        note: What its capture noted.
    """
    step, batch = note.step, options.wanted_batch
    if batch > 1:
        yield _plan("half-batch", f"A batch of {batch // 2}", f"batch_size={batch // 2}",
                    "noisier gradients", replace(options, batch_size=batch // 2))  # fmt: skip
    yield from _inputs(options, note)
    if step.dtype_policy in ("float32", ""):
        for kind, cost in (("float16", "loss scaling"), ("bfloat16", "8 bits of mantissa")):
            policy = f"mixed_{kind}"
            yield _plan(f"mixed-{kind}", f"Mixed precision, {kind}",
                        f'keras.config.set_dtype_policy("{policy}")  # before the model is made',
                        cost, replace(options, dtype_policy=policy))  # fmt: skip
    yield _plan(
        "no-jit" if step.jit else "jit",
        "Op by op, without XLA" if step.jit else "Compiled with XLA",
        f"model.compile(..., jit_compile={not step.jit})",
        "slower" if step.jit else "a compilation at the start",
        replace(options, jit=not step.jit),
    )
    if step.mode == "infer":
        return
    yield from _training(options, note, batch)


def _training(options: CaptureOptions, note: RunNote, batch: int) -> Iterator[RemedyPlan]:
    own = note.step.optimizer or "Adam"
    if batch >= ACCUMULATED:
        yield _plan(
            f"accumulate-{ACCUMULATED}",
            f"{ACCUMULATED} batches of {batch // ACCUMULATED}, their gradients added up",
            f"keras.optimizers.{own}(..., gradient_accumulation_steps={ACCUMULATED})  "
            f"# batch_size={batch // ACCUMULATED}",
            "one more value a weight; batch normalization sees the small batches",
            replace(
                options, batch_size=batch // ACCUMULATED, remedy=f"accumulate={ACCUMULATED}"
            ),
        )  # fmt: skip
    for name in (*_OPTIMIZERS, *_OTHERS):
        kind = _CLASSES.get(name, name.capitalize())
        if kind != own:
            yield _plan(f"optimizer-{name}", f"{kind} in place of {own}",
                        f"model.compile(optimizer=keras.optimizers.{kind}(...), ...)",
                        "other hyper-parameters", replace(options, optimizer=name))  # fmt: skip
    for mode, what in (("full", "every layer"), ("activations", "activation functions")):
        yield _plan(
            f"remat-{mode}", f"Activations recomputed, {what}",
            f'with keras.RematScope(mode="{mode}"):  # around the code that makes the model',
            "a second forward pass" if mode == "full" else "activations computed twice",
            replace(options, remedy=f"remat={mode}"),
        )  # fmt: skip
    yield _plan("freeze", "Only the last layer with weights is trained",
                "for layer in model.layers[:-1]: layer.trainable = False  # before compile",
                "the layers frozen do not learn",
                replace(options, remedy="freeze=all-but-last"))  # fmt: skip
    uses_ema = any("average" in variable.path for variable in note.variables)
    yield _plan(
        "no-ema" if uses_ema else "ema",
        "No moving average of the weights" if uses_ema else "A moving average of the weights",
        f"keras.optimizers.{own}(..., use_ema={not uses_ema})",
        "" if uses_ema else "one more value a weight",
        replace(options, remedy=f"ema={'off' if uses_ema else 'on'}"),
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
    text = " ".join(
        f"--shape {name + '=' if name else ''}{','.join(map(str, shape))}"
        for name, shape in smaller.items()
    )
    yield _plan("smaller-input", f"Inputs half as long a side ({text.removeprefix('--shape ')})", text,
                "less detail, or less context", replace(options, shapes=smaller))  # fmt: skip


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with its sides halved: all but the last axis, or the only one."""
    if len(shape) < 2:
        return tuple(max(axis // 2, 1) for axis in shape)
    return (*(max(axis // 2, 1) for axis in shape[:-1]), shape[-1])


def _plan(name: str, title: str, code: str, costs: str, options: CaptureOptions) -> RemedyPlan:
    return RemedyPlan(id=name, title=title, code=code, costs=costs, options=options)


def _need(
    access: StepAccess,
    options: CaptureOptions,
    batch: int,
    name: str,
    limit_bytes: int | None,
    threads: int | None,
) -> tuple[RunNote, StepNeed]:
    captures = BatchCaptures(access, options, f"remedy-{name}")
    note = captures.note(batch)
    if note.compiled:
        need = captures.need(batch)
        fits = None if limit_bytes is None else need.bytes <= limit_bytes
        return note, StepNeed(
            requested_bytes=need.requested_bytes, allocated_bytes=need.allocated_bytes, fits=fits
        )
    orders = play_orders(
        StepFamily((batch,), (note,)), (batch,), threads=threads, inter_op=options.inter_op_threads
    )
    main, settings = orders.main, orders.target.options
    peaks = sorted(int(order.live_bytes(batch).max(initial=0)) for order in main)
    chunks = sorted(order.allocated_bytes(batch, settings.unlimited()) for order in main)
    fits = None
    if limit_bytes is not None:
        under = replace(settings, memory_limit_bytes=limit_bytes)
        fits = 2 * sum(order.fits(batch, under) for order in main) > len(main)
    middle = (len(main) - 1) // 2
    return note, StepNeed(requested_bytes=peaks[middle], allocated_bytes=chunks[middle], fits=fits)
