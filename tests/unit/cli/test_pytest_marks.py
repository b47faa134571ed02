"""The marks in a pytest of its own: what fails, what is said, and that nothing happens without them."""

from pathlib import Path

import pytest
from builders import INSTALLED

pytest_plugins = ["pytester"]


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str
) -> pytest.RunResult:
    """Run pytest in a process of its own, with this plugin alone and none of the checkout's settings."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    return pytester.runpytest_subprocess(
        "-p",
        "analyzer.cli.plugins.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "--strict-markers",
        *options,
    )


@pytest.mark.tf
def test_a_test_over_its_limit_fails_with_the_tensors(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest
        import tensorflow as tf

        kept = []

        @pytest.fixture
        def given():
            return tf.zeros([1024, 1024])  # 4 MiB that the test itself does not ask for

        @pytest.mark.limit_memory("2 MiB")
        def test_within(given):
            tf.ones([256, 1024])

        @pytest.mark.limit_memory("3 MiB")
        def test_above(given):
            first = tf.ones([512, 1024])
            tf.concat([first, first], 0)

        @pytest.mark.limit_memory("1 GiB")
        @pytest.mark.limit_growth("1 KiB")
        def test_grows():
            kept.append(tf.ones([256, 1024]))

        @pytest.mark.limit_growth("1 KiB")
        def test_gives_back():
            tf.ones([256, 1024])

        @pytest.mark.limit_memory("1 KiB")
        def test_asks_for_nothing():
            pass

        @pytest.mark.limit_memory("1 B")
        def test_fails_of_itself():
            tf.ones([8])
            assert False, "its own"
        """
    )
    ended = run(pytester, monkeypatch)
    ended.assert_outcomes(passed=3, failed=3)
    said = ended.stdout.str()
    assert "limit_memory: peak 6.00 MiB (6,291,456 bytes), limit 3.00 MiB" in said
    assert "limit_growth: 1.00 MiB (1,048,576 bytes) still held after the test" in said
    assert "float32[1024,1024]" in said
    assert "beyond those in use at the start" in " ".join(said.split())
    assert "not from the process's resident memory" in " ".join(said.split())
    assert "its own" in said


def test_without_a_mark_nothing_is_imported_or_set(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import os
        import sys

        def test_nothing():
            loaded = {"tensorflow", "pandas", "numpy", "analyzer.cli.plugins.measured_block"}
            assert not loaded & set(sys.modules)
            assert "TF_CPU_ALLOCATOR_USE_BFC" not in os.environ
        """
    )
    run(pytester, monkeypatch).assert_outcomes(passed=1)


@pytest.mark.parametrize("size", ['"much"', "", '"1 MiB", "2 MiB"'])
def test_a_mark_that_is_no_size_is_refused_before_a_test_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.limit_memory({size})
        def test_never_runs():
            open("ran", "w")
        """
    )
    ended = run(pytester, monkeypatch)
    assert ended.ret == pytest.ExitCode.USAGE_ERROR
    ended.stderr.fnmatch_lines(["*test_never_runs*limit_memory*"])
    assert not Path("ran").exists()


@pytest.mark.tf
@pytest.mark.slow
def test_a_tensorflow_that_had_started_is_told_of(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import pytest
        import tensorflow as tf

        early = tf.ones([8])

        @pytest.mark.limit_memory("1 GiB")
        def test_cannot_be_measured():
            pass
        """
    )
    ended = run(pytester, monkeypatch)
    ended.assert_outcomes(failed=1)
    assert "TF_CPU_ALLOCATOR_USE_BFC=1" in ended.stdout.str()
