"""A TensorFlow or Keras that is newer than what was read of their insides is said so."""

from analyzer.capture.private_names import READ_IN, list_newer_versions


def test_newer_release_adds_a_line() -> None:
    (major, minor), keras = READ_IN["TensorFlow"], READ_IN["Keras"]
    same = {"TensorFlow": f"{major}.{minor}.7", "Keras": "3.3.0"}
    assert list(list_newer_versions(same)) == []
    assert list(list_newer_versions()) == []
    release = f"{major}.{minor + 1}.0-rc1"
    newer = {"TensorFlow": release, "Keras": f"{keras[0] + 1}.0"}
    first, second = list_newer_versions(newer)
    assert first.startswith(f"TensorFlow {release} is newer than {major}.{minor},")
    assert second.startswith(f"Keras {keras[0] + 1}.0 is newer than")
    assert list(list_newer_versions({"TensorFlow": "nightly.of.today"})) == []
