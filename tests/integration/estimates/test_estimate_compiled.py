"""Steps that XLA compiles are run, not estimated from their graph."""

from workbench import Workbench


def test_a_compiled_step_on_the_cpu_is_refused_in_one_line(
    workbench: Workbench,
) -> None:
    ran = workbench.run("estimate", "compiled_steps.py:anew", code=2)
    assert ran.ended.err.count("\n") == 1, ran.ended.err
    assert "analyze trace" in ran.ended.err
    assert not ran.folder.exists()


def test_a_step_that_is_compiled_each_time_is_found(workbench: Workbench) -> None:
    report = workbench.run("trace", "compiled_steps.py:anew").document
    assert "compiled-anew" in [found["id"] for found in report["findings"]]
