"""The installed TensorFlow and Keras are checked before anything starts."""

from __future__ import annotations

import pytest

from analyzer.capture.process import child_environment as packages
from analyzer.capture.process.child_environment import make_base_environment
from analyzer.model.errors import InputError


@pytest.mark.parametrize("version", ["2.15.0", "3.0.5", "3.8.0"])
def test_old_keras_is_refused(monkeypatch, version):
    monkeypatch.setattr(packages, "version", lambda package: version)
    with pytest.raises(InputError) as caught:
        make_base_environment(log_level=None)
    assert f"Keras {version} is installed; Keras 3.9 or newer is needed." in str(caught.value)


@pytest.mark.parametrize("version", ["3.9.0", "3.16.0.dev2026", "nightly"])
def test_other_keras_is_accepted(monkeypatch, version):
    monkeypatch.setattr(packages, "version", lambda package: version)
    packages.check_packages()


def test_missing_tensorflow_is_named(monkeypatch):
    monkeypatch.delitem(packages.sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(InputError, match="tensorflow is not installed") as caught:
        packages.check_packages()
    assert "Reading traces" in caught.value.hint


def test_windows_is_sent_to_wsl(monkeypatch):
    monkeypatch.setattr(packages.sys, "platform", "win32")
    with pytest.raises(InputError, match="Windows") as caught:
        packages.check_packages()
    assert "WSL" in caught.value.hint


def test_two_builds_are_described(monkeypatch):
    installed = {"tensorflow": "2.21.0"}

    def read(name):
        try:
            return installed[name]
        except KeyError:
            raise packages.PackageNotFoundError(name) from None

    monkeypatch.setattr(packages, "version", read)
    assert packages.describe_builds() == ""
    installed["tensorflow-cpu"] = "2.20.0"
    assert packages.describe_builds().startswith("tensorflow 2.21.0 and tensorflow-cpu 2.20.0 are")
