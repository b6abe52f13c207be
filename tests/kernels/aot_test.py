"""The TPU kernels compiled for chips that are not there; needs libtpu (the extra `tpu`)."""

import importlib.util
import itertools
import json
import os
import subprocess
import sys

import pytest

from resjax.kernels.depth_attention import tpu_schedule
from resjax.kernels.depth_attention.tiles import CHIPS
from resjax.kernels.depth_attention.tpu_schedule import Case

needs_libtpu = pytest.mark.skipif(
  importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"
)
