"""What is compiled for TPUs that are not there, see also the fixture `no_tpu`."""

import importlib.util

import pytest

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the extra `tpu`)"
)
