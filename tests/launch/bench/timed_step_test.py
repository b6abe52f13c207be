"""The kernels of a step, as a fake for CUPTI lists them."""

import sys
import types

import jax
import pytest

from launch.bench import timed_step
from launch.bench.kernels import timing


class Cupti:
  """Sees two launches of a long kernel and one of a short one in every run."""

  def __init__(self):
    self.runs, self.kernel = None, "k" * 200

  def _cupti_init(self):
    self.runs = 0

  def _cupti_get_timings(self, finalize):
    assert finalize
    return [(self.kernel, 2.0), ("short", 1.0), (self.kernel, 3.0)] * self.runs


@pytest.fixture
def cupti(monkeypatch):
  cupti = Cupti()
  module = types.SimpleNamespace(_mosaic_gpu_ext=cupti)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setitem(sys.modules, "jax._src.lib.mosaic_gpu", module)
  monkeypatch.setattr(sys.modules["jax._src.lib"], "mosaic_gpu", module, raising=False)
  return cupti


def counted(cupti):
  def work():
    if cupti.runs is not None:
      cupti.runs += 1

  return work


def test_the_time_of_a_function_is_that_of_its_kernels(cupti):
  assert timing.cupti(counted(cupti))() == pytest.approx(6e-3)


def test_kernels_of_a_step_the_longest_first(cupti, monkeypatch):
  found = timed_step._kernels(counted(cupti))
  assert found == {
    "kernel_ms": 6.0,
    "launches": 3,
    "names": 2,
    "kernels": [
      {"kernel": "k" * 120, "calls": 2, "ms": 5.0, "share": 5 / 6},
      {"kernel": "short", "calls": 1, "ms": 1.0, "share": 1 / 6},
    ],
  }
  monkeypatch.setattr(timed_step, "_MOST", 1)
  assert len(timed_step._kernels(counted(cupti))["kernels"]) == 1


def test_cupti_that_sees_nothing_is_an_error(cupti):
  with pytest.raises(RuntimeError, match="CUPTI saw no kernel"):
    timing.kernel_times(lambda: None, runs=0)


def test_there_is_none_on_a_cpu():
  with pytest.raises(ValueError, match="CUPTI lists the kernels of NVIDIA GPUs alone"):
    timing.kernel_times(lambda: None)
