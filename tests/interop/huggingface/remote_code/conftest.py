"""Fixtures of the tests that run code in transformers."""

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def modules(tmp_path_factory):
  """transformers copies code to a folder of its own before it runs it."""
  if importlib.util.find_spec("transformers") is None:
    yield
    return
  with pytest.MonkeyPatch.context() as patch:
    place = str(tmp_path_factory.mktemp("modules"))
    patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", place)
    yield
