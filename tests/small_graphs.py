"""Small graphs by hand, and the schedules of a process that runs them."""

from analyzer.model.contract.run_note import Op, TensorSpec, ThreadsNote, VariableNote
from analyzer.simulate.allocator.bfc import BfcOptions
from analyzer.simulate.kernels.cpu_kernels import CPU
from analyzer.simulate.predict.prediction import play, predict
from analyzer.simulate.predict.prepared_step import Prepared
from analyzer.tracing.parse.run_folder import RunNote

KIB = 1024
VECTOR = TensorSpec("float32", (256,))
SCALAR = TensorSpec("int32", ())
FLAG = TensorSpec("bool", ())
HANDLE = TensorSpec("resource", ())


def arg(name, index, spec=VECTOR, **attrs):
    return Op(name, "_Arg", outputs=(spec,), attrs={"index": index, **attrs})


def op(name, kind, *inputs, spec=VECTOR, control=(), count=1, **attrs):
    inputs = tuple(tensor if ":" in tensor else f"{tensor}:0" for tensor in inputs)
    return Op(name, kind, inputs, tuple(control), (spec,) * count, attrs=attrs)


def constant(name, *values):
    value = {"dtype": "int32", "shape": [], "values": list(values)}
    return Op(name, "Const", outputs=(SCALAR,), attrs={"value": value})


def result(name, tensor):
    return Op(f"{name}_retval", "_Retval", (tensor,), attrs={"index": 0})


def variable(path, argument, dtype="float32", shape=(256,), category="parameter"):
    return VariableNote(path, dtype, shape, category, argument=argument)


def prepare_ops(ops, *variables, device=CPU, threads=1, assumed=None):
    """Return a graph ready to be executed."""
    return Prepared(_make_note(ops, variables, threads, assumed), device)


def _make_note(ops, variables, threads, assumed):
    return RunNote(
        ops=tuple(ops),
        variables=variables,
        threads=ThreadsNote(inter_op=threads),
        assumed=assumed or {},
    )


def play_ops(ops, *variables, seed=0, **options):
    """Return one schedule of a graph."""
    return play(prepare_ops(ops, *variables, **options), seed)


def predict_ops(ops, *variables, device=CPU, threads=1, assumed=None):
    """Return the prediction of a graph."""
    note = _make_note(ops, variables, threads, assumed)
    return predict(note, device, BfcOptions.cpu())


def requests_of(prepared, schedule, step=-1):
    """Return (op, bytes) of each request of a step, in order."""
    first = schedule.steps[step].first
    last = schedule.steps[step].last
    return [
        (prepared.ops[buffer.node].name, buffer.size_bytes)
        for buffer in schedule.buffers
        if buffer.node >= 0 and first <= buffer.born <= last
    ]
