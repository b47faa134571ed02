"""A batch that no buffer of the allocator holds."""

from dataclasses import replace

from builders import sample_folder, with_recording

from analyzer.explain.running.step_differences import describe_uncounted_batch
from analyzer.model.contract.run_note import Op, TensorSpec
from analyzer.model.graph.buffer_sharing import ITERATOR
from analyzer.session.opening import open_result


def test_a_batch_in_numpys_memory_is_named() -> None:
    analysis = open_result(sample_folder("cnn"), search=False).analysis
    graph = analysis.recording.structure

    # GIVEN a data set whose batch no buffer of the allocator holds
    batch = Op("next", ITERATOR, outputs=(TensorSpec("float32", (-1, 32, 32, 3)),))
    structure = replace(graph, ops={**graph.ops, "next": batch})
    analysis = with_recording(analysis, structure=structure)
    halved = analysis.rows["requested_bytes"] // 2  # a batch of pairs, say
    held = replace(analysis, rows=analysis.rows.assign(requested_bytes=halved))
    assert not [*describe_uncounted_batch(held)]

    rows = analysis.rows[analysis.rows["category"] != "input"]
    assert [*describe_uncounted_batch(replace(analysis, rows=rows))]
