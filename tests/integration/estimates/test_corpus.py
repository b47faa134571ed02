"""Targets of many forms: each can be estimated and traced, or is refused in one clear line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import run_python

TARGETS = Path(__file__).parents[1] / "targets"

C = "corpus.py:"
NETWORK = 4 * (16 * 32 + 32 + 32 * 4 + 4)
WORKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: target, options, what is known of the step
    "moving average": (
        C + "moving_average",
        {},
        {"parameter": 2 * NETWORK, "optimizer": "Adam"},
    ),
    "target network": (C + "target_network", {}, {"parameter": 2 * NETWORK}),
    "loaded weights": (C + "loaded_weights", {}, {"parameter": NETWORK}),
    "checkpoint": (C + "checkpoint", {}, {"parameter": NETWORK}),
    "reads and assigns": (C + "reads_and_assigns", {}, {"parameter": NETWORK}),
    "lazy slots": (
        C + "lazy_slots",
        {},
        {"optimizer": "AdamW", "optimizer_state": 2 * NETWORK},
    ),
    "plain module": (C + "plain_module", {}, {"parameter": 256, "constant": 512}),
    "variables in the step": (
        C + "variables_in_the_step",
        {},
        {"parameter": 17 * 1024},
    ),
    "dict inputs": (
        C + "dict_inputs",
        {"batch_size": 4},
        {"notes": "binary_crossentropy", "inputs": [[4, 16], [4, 6], [4], [4, 1]]},
    ),
    "nested outputs": (
        C + "nested_outputs",
        {"batch_size": 4},
        {
            "inputs": [[4, 6], [4, 6], [4, 8], [4, 8]],
            "notes": "sparse_categorical_crossentropy",
        },
    ),
    "speech": (
        C + "speech",
        {"batch_size": 4},
        {"notes": "loss: sparse_categorical_crossentropy, none (chosen"},
    ),
    "speech, shapes": (
        C + "unbuilt_speech",
        {"shapes": {"audio": [10, 4], "words": [6]}, "batch_size": 2},
        {"notes": "sparse_categorical_crossentropy"},
    ),
    "unbuilt": (C + "Unbuilt", {"shapes": {"": [16]}}, {"parameter": 4 * 17 * 4}),
    "no Input": (
        C + "without_input",
        {"shapes": {"": [16]}},
        {"parameter": 4 * (17 * 8 + 36)},
    ),
    "text": (C + "text", {"batch_size": 4}, {"inputs": [[4, 5], [4, 1]]}),
    "scalar output": (C + "scalar_output", {}, {"notes": "output_itself"}),
    "remembers its shape": (
        C + "remembers_its_shape",
        {"batch_size": 4},
        {"inputs": [[4, 10], [4, 3]]},
    ),
    "augmented": (C + "augmented", {}, {"notes": "sparse_categorical_crossentropy"}),
    "autoencoder": (C + "autoencoder", {"batch_size": 4}, {"inputs": [[4, 16]]}),
    "adversarial": (C + "adversarial", {"batch_size": 4}, {"inputs": [[4, 16]]}),
    "inverts its weights": (C + "inverts_its_weights", {}, {"parameter": 4 * 17 * 16}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unbuilt": (
        C + "Unbuilt",
        {},
        "Give it: --shape 224,224,3; build it with keras.Input",
    ),
    "no Input": (C + "without_input", {}, "it is not built and has no input shape"),
    "two arguments": (
        C + "two_arguments",
        {"shapes": {"": [4]}},
        "cannot be called on its inputs",
    ),
    "whole numbers out": (C + "whole_numbers_out", {}, "no loss fits that"),
    "nothing to train": (
        C + "nothing_to_train",
        {},
        "no trainable variables. Use --mode infer.",
    ),
    "wrong values": (C + "wrong_values", {}, "must match"),
    "needs an argument": (
        C + "needs_width",
        {},
        "'width'. Name a function without parameters",
    ),
    "loads data": (
        C + "loads_data",
        {},
        "No data is needed. Name a function that only builds",
    ),
    "fails": (C + "fails", {}, "ZeroDivisionError"),
    "a module of another version": (
        C + "of_another_version",
        {},
        "Correct this line of your code",
    ),
    "loss of another rank": (
        C + "scalar_output",
        {"loss": "mse"},
        "The step cannot be traced",
    ),
    "sparse": (C + "sparse", {"batch_size": 4}, "is sparse or ragged"),
}
EAGER: dict[str, tuple[str, dict[str, Any], str]] = {
    "eager step": (C + "eager_step", {}, "Decorate it with @tf.function"),
    "run eagerly": (C + "run_eagerly", {}, "analyze trace"),
    "model, inputs": (
        C + "model_and_inputs",
        {},
        "analyze trace",
    ),
}
FEW = (
    "lazy slots", "variables in the step", "speech, shapes",
    "no Input", "remembers its shape", "augmented",
)  # fmt: skip
"""Of those that work, the ones that are not left for ``-m slow``."""


class Corpus:
    """What became of each target; one process for all.

    Args:
        folder: Where the targets lie.
        wanted: Those that work and that a test asks for.
    """

    def __init__(self, folder: Path, wanted: set[str]) -> None:
        self.folder = folder
        self.wanted = wanted
        self.found: dict[str, dict[str, Any]] = {}

    def get(self, kind: str, name: str) -> dict[str, Any]:
        self.found = self.found or self._run()
        outcome: dict[str, Any] = self.found[kind][name]
        return outcome

    def _run(self) -> dict[str, Any]:
        works = {name: case for name, case in WORKS.items() if name in self.wanted}
        cases = {f"works {name}": case[:2] for name, case in works.items()}
        cases |= {f"refused {name}": case[:2] for name, case in REFUSED.items()}
        cases |= {f"eager {name}": case[:2] for name, case in EAGER.items()}
        environment = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        done = run_python(
            "run_corpus.py",
            cwd=self.folder,
            given=json.dumps(cases),
            **environment,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        outcomes: dict[str, Any] = json.loads(
            (self.folder / "results.json").read_text()
        )
        return outcomes


@pytest.fixture(scope="module")
def corpus(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("corpus.py", "run_corpus.py"):
        shutil.copy(TARGETS / name, folder)
    calls = (getattr(item, "callspec", None) for item in request.session.items)
    return Corpus(
        folder,
        {str(call.params["name"]) for call in calls if call and "name" in call.params},
    )


TARGETS_THAT_WORK = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in WORKS
]


@pytest.mark.parametrize("kind", ["estimate", "trace"])
@pytest.mark.parametrize("name", TARGETS_THAT_WORK)
def test_works(kind: str, name: str, corpus: Corpus) -> None:
    known = WORKS[name][2]
    found = corpus.get(kind, f"works {name}")
    assert "error" not in found, found
    assert found["failed"] is None
    for key, value in known.items():
        if key == "notes":
            assert value in " ".join(found["notes"])
        elif key == "inputs":
            assert found["inputs"] == value
        elif isinstance(value, int):
            # A few scalars and seeds more: counters, a learning rate.
            assert value <= found["bytes"][key] <= value + 64, found["bytes"]
        else:
            assert found[key] == value


@pytest.mark.parametrize("name", TARGETS_THAT_WORK)
def test_estimate_has_the_variables_of_a_run(name: str, corpus: Corpus) -> None:
    estimated, ran = (
        corpus.get(kind, f"works {name}") for kind in ("estimate", "trace")
    )
    assert estimated["bytes"] == ran["bytes"]


@pytest.mark.parametrize("kind", ["estimate", "trace"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(kind: str, name: str, corpus: Corpus) -> None:
    assert REFUSED[name][2] in corpus.get(kind, f"refused {name}").get("error", "")


@pytest.mark.parametrize("name", EAGER)
def test_eager_step_is_traced_but_not_estimated(name: str, corpus: Corpus) -> None:
    assert corpus.get("trace", f"eager {name}")["failed"] is None
    error = corpus.get("estimate", f"eager {name}")["error"]
    assert "The step runs eagerly" in error
    assert EAGER[name][2] in error
