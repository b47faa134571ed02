"""The installed TensorFlow and Keras are checked before anything starts."""

import pytest

from analyzer.capture.process import child_environment as packages
from analyzer.capture.process.child_environment import make_base_environment
from analyzer.model.errors import InputError


@pytest.mark.parametrize("version", ["2.15.0", "3.0.5", "3.8.0"])
def test_old_keras_is_refused(monkeypatch, version):
    monkeypatch.setattr(packages, "version", lambda package: version)
    with pytest.raises(InputError) as caught:
        make_base_environment(log_level=None)
    assert f"Keras {version} is installed; Keras 3.9 or newer is needed." in str(
        caught.value
    )
