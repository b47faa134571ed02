"""Small graphs by hand: lifetimes, forwarding, copy on write, branches and loops."""

from dataclasses import replace

import pytest
from small_graphs import (
    FLAG,
    HANDLE,
    KIB,
    SCALAR,
    VECTOR,
    arg,
    constant,
    op,
    play_ops,
    predict_ops,
    prepare_ops,
    requests_of,
    result,
    variable,
)

from analyzer.model.contract.run_note import Op, TensorSpec
from analyzer.model.errors import InputError
from analyzer.model.recording.records import earlier_categories
from analyzer.simulate.kernels.cpu_kernels import (
    CPU,
    HANDLE_BYTES,
    MemoryPlan,
    Output,
    Way,
)
from analyzer.simulate.predict.predicted_recording import (
    describe_notes,
    find_holdings,
    make_table,
)
from analyzer.simulate.predict.prediction import play


def names_of(ops, *variables, **options):
    """Return the ops with a request in the last step."""
    prepared = prepare_ops(ops, *variables, **options)
    return [name for name, _ in requests_of(prepared, play(prepared))]


def test_a_chain_of_element_wise_ops_needs_one_buffer():
    ops = [arg("x", 0), op("a", "Exp", "x"), op("b", "Sin", "a"), op("c", "Neg", "b")]
    schedule = play_ops([*ops, result("c", "c:0")])
    assert schedule.peak_bytes == 2 * KIB  # the argument and the result


def test_a_tensor_with_a_later_reader_is_not_overwritten():
    ops = [
        arg("x", 0),
        op("a", "Exp", "x"),
        op("b", "Sin", "a"),
        op("c", "Mul", "a", "b"),
    ]
    assert play_ops([*ops, result("c", "c:0")]).peak_bytes == 3 * KIB


def test_a_result_is_freed_when_its_step_ends():
    schedule = play_ops([arg("x", 0), op("a", "Exp", "x"), result("a", "a:0")])
    live = schedule.live_bytes
    peaks = [int(live[step.first : step.last + 2].max()) for step in schedule.steps]
    assert peaks == [2 * KIB, 2 * KIB, 2 * KIB]


def test_a_variable_with_a_read_alive_is_copied_on_write():
    start = [arg("v", 0, HANDLE), op("read", "ReadVariableOp", "v"), arg("x", 1)]
    update = Op("add", "AssignAddVariableOp", ("v:0", "x:0"), ("read",))
    late = op("late", "Mul", "read", "x", control=("add",))
    owner = variable("w", 0)
    assert "add" in names_of([*start, update, late, result("late", "late:0")], owner)
    early = op("early", "Mul", "read", "x")
    after = Op("add", "AssignAddVariableOp", ("v:0", "x:0"), ("early",))
    assert "add" not in names_of(
        [*start, early, after, result("early", "early:0")], owner
    )


def test_equal_slots_get_buffers_of_their_own_at_the_first_update():
    """``ResourceApplyAdam`` calls ``PrepareToUpdateVariable`` for the parameter and both slots."""
    handles = [arg(name, index, HANDLE) for index, name in enumerate("vms")]
    update = Op("adam", "ResourceApplyAdam", ("v:0", "m:0", "s:0", *["x:0"] * 7))
    slots = [
        variable(name, n, category="optimizer_state")
        for n, name in ((1, "m"), (2, "s"))
    ]
    prepared = prepare_ops([*handles, arg("x", 3), update], variable("v", 0), *slots)
    schedule = play(prepared)
    assert requests_of(prepared, schedule, 0) == [("adam", KIB)]
    assert requests_of(prepared, schedule, 1) == []


def test_a_variable_adopts_the_value_it_is_assigned():
    new = "gradient_tape/new"
    ops = [arg("v", 0, HANDLE), arg("x", 1), op(new, "Exp", "x")]
    ops.append(Op("set", "AssignVariableOp", ("v:0", f"{new}:0")))
    found = predict_ops(ops, variable("w", 0))
    table = make_table(found)
    rows = table[table.op == new]
    assert {holder for row, holder, _ in find_holdings(found) if row in rows.index} == {
        0
    }
    assert rows.dies.iloc[-1] == found.middle.instants
    assert rows.turns_at.notna().all()
    assert set(earlier_categories(rows)) == {"gradient"}


def test_a_variable_set_to_a_constant_has_the_constants_buffer():
    zeros = Op("zeros", "Const", outputs=(VECTOR,))
    ops = [
        arg("v", 0, HANDLE),
        zeros,
        Op("set", "AssignVariableOp", ("v:0", "zeros:0")),
    ]
    schedule = play_ops(ops, variable("w", 0))
    assert int(schedule.live_bytes[schedule.steps[-1].first]) == KIB + HANDLE_BYTES


def cond_graph():
    """``if step % 2 == 0: sum(one_hot(x)) else: -x``, with a counter of the steps."""
    big = TensorSpec("float32", (1 << 16,))
    return [
        arg("n", 0, HANDLE),
        arg("x", 1),
        op("now", "ReadVariableOp", "n", spec=SCALAR),
        constant("one", 1),
        constant("two", 2),
        constant("wanted", 0),
        Op("count", "AssignAddVariableOp", ("n:0", "one:0"), ("now",)),
        op("rest", "FloorMod", "now", "two", spec=SCALAR),
        op("even", "Equal", "rest", "wanted", spec=FLAG),
        op("switch", "Switch", "x", "even", count=2),
        op("tile", "OneHot", "switch:1", spec=big),
        op("sum", "BiasAddGrad", "tile"),
        op("small", "Neg", "switch:0"),
        Op("merge", "Merge", ("small:0", "sum:0"), outputs=(VECTOR, SCALAR)),
        result("merge", "merge:0"),
    ]


def test_an_unknown_branch_is_a_decision():
    found = predict_ops(cond_graph(), variable("iteration", 0))
    assert list(found.decisions) == ["even"]


def loop_graph(count):
    """``while i < count: stack.push(exp(x))`` as it is lowered."""
    frame = {"frame_name": "loop", "parallel_iterations": 10, "is_constant": False}
    variant = TensorSpec("variant", ())
    return [
        arg("x", 0),
        constant("zero", 0),
        constant("limit", count),
        constant("step", 1),
        arg("stack", 1, variant),
        op("i_in", "Enter", "zero", spec=SCALAR, **frame),
        op("s_in", "Enter", "stack", spec=variant, **frame),
        op("x_in", "Enter", "x", **(frame | {"is_constant": True})),
        op(
            "limit_in", "Enter", "limit", spec=SCALAR, **(frame | {"is_constant": True})
        ),
        op("step_in", "Enter", "step", spec=SCALAR, **(frame | {"is_constant": True})),
        Op("i", "Merge", ("i_in:0", "i_next:0"), outputs=(SCALAR, SCALAR)),
        Op("s", "Merge", ("s_in:0", "s_next:0"), outputs=(variant, SCALAR)),
        op("less", "Less", "i", "limit_in", spec=FLAG),
        op("on", "LoopCond", "less", spec=FLAG),
        op("i_switch", "Switch", "i", "on", spec=SCALAR, count=2),
        op("s_switch", "Switch", "s", "on", spec=variant, count=2),
        op("i_more", "AddV2", "i_switch:1", "step_in", spec=SCALAR),
        op("exp", "Exp", "x_in", control=("i_more",)),
        op("push", "TensorListPushBack", "s_switch:1", "exp", spec=variant),
        op("i_next", "NextIteration", "i_more", spec=SCALAR),
        op("s_next", "NextIteration", "push", spec=variant),
        op("s_out", "Exit", "s_switch:0", spec=variant),
        Op("stack_retval", "_Retval", ("s_out:0",), attrs={"index": 0}),
    ]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 7, 25])
def test_a_loop_runs_as_often_as_its_counter_says(count, threads):
    assert names_of(loop_graph(count), threads=threads).count("exp") == count


@pytest.mark.parametrize("threads", [1, 2])
def test_every_schedule_frees_what_it_allocates(threads):
    for seed in range(6):
        schedule = play_ops(loop_graph(12), seed=seed, threads=threads)
        born = [one for one in schedule.buffers if one.node >= 0 and one.label is None]
        earlier = [one for one in born if one.born < schedule.steps[-1].first]
        assert earlier
        assert all(one.dies > one.born for one in earlier)


def test_unknown_types_are_named():
    found = predict_ops([arg("x", 0), op("a", "SomethingNew", "x"), result("a", "a:0")])
    assert "SomethingNew have no rule" in " ".join(describe_notes(found))


@pytest.mark.parametrize("is_read_later", [False, True])
def test_a_temporary_may_take_the_buffer_of_an_input(is_read_later):
    """As ``forward_input_or_allocate_temp`` does: a plan has an output that the op lacks."""

    def plan(call):
        if call.op.type != "Scratch":
            return CPU.plan(call)

        temporary = Output(Way.FORWARD, KIB, (0,), region="temp")
        return MemoryPlan(outputs=(Output(Way.ALLOCATE, KIB), temporary))

    readers = [op("sum", "AddV2", "b", "a" if is_read_later else "b")]
    ops = [arg("x", 0), op("a", "Exp", "x"), op("b", "Scratch", "a"), *readers]
    prepared = prepare_ops(
        [*ops, result("sum", "sum:0")], device=replace(CPU, plan=plan)
    )
    schedule = play(prepared, 0)
    names = [name for name, _ in requests_of(prepared, schedule)]
    assert names.count("b") == 1 + is_read_later
    last = schedule.steps[-1]
    scratch = [one for one in schedule.buffers if one.output == 1]
    assert all(one.dies <= last.last + 1 for one in scratch)


def test_a_graph_that_names_a_missing_op_is_refused():
    with pytest.raises(InputError, match="names the missing op"):
        prepare_ops([op("a", "Exp", "x")])


def switch_case(index, branches=3):
    """``switch_case`` of branches that hold one, two, three... buffers."""
    ops = [arg("x", 0), index, op("way", "_SwitchN", "x", index.name, count=branches)]
    for branch in range(branches):
        ops.append(op(f"b{branch}_0", "Pad", f"way:{branch}"))
        ops += [
            op(f"b{branch}_{k}", "Pad", f"b{branch}_0") for k in range(1, branch + 1)
        ]
        names = [f"b{branch}_{k}" for k in range(branch + 1)]
        ops.append(op(f"sum{branch}", "AddN", *names))
    merged = Op(
        "m",
        "Merge",
        tuple(f"sum{b}:0" for b in range(branches)),
        outputs=(VECTOR, SCALAR),
    )
    return [*ops, merged, result("m", "m:0")]


@pytest.mark.parametrize(("index", "taken"), [(0, 0), (1, 1), (2, 2), (9, 2), (-1, 2)])
def test_of_several_branches_one_runs(index, taken):
    names = names_of(switch_case(constant("index", index)))
    ran = {name for name in names if name.startswith("b")}
    assert ran == {f"b{taken}_{k}" for k in range(taken + 1)}
