"""Changes are added up, and the run is compiled with them, until it fits."""

import pytest

from resjax.aot import compile_step
from resjax.aot.memory import Arguments, DoesNotFitError
from resjax.aot.verify_changes import verify

REPORT = compile_step.Report(None, None, 0.0, 0.0, 0.0, 0.0, "", "")
CHANGES = [
  "--config.train.microbatches=8: 1 rows per device at a time instead of 4",
  "--config.model.remat=full: a layer keeps its input alone",
  "--config.mesh.data=1 --config.mesh.fsdp=8: parameters and moments 24.0 -> 12.0 GiB",
  "chips with more HBM, or more of them with config.mesh.fsdp raised in proportion",
]


@pytest.mark.parametrize(
  ("needed", "tries", "flags"),
  [
    (1, 1, "--config.train.microbatches=8"),
    (2, 2, "--config.train.microbatches=8 --config.model.remat=full"),
    (
      4,
      3,
      "--config.train.microbatches=8 --config.model.remat=full --config.mesh.data=1 "
      "--config.mesh.fsdp=8",
    ),
  ],
)
def test_the_first_that_suffice(needed, tries, flags):
  """A program fits with as many settings as `needed`; the third change has two of them."""
  tried = []

  def attempt(settings):
    tried.append(settings)
    if len(settings) < needed:
      raise DoesNotFitError(Arguments(0, 0, 0), 2.0, 1.0)
    return REPORT

  found = verify(CHANGES, attempt)
  assert found.fits and len(tried) == tries and found.flags == flags
  assert tried[0] == {"train.microbatches": 8}


def test_none_suffices_or_some_do_not_go_together():
  def attempt(settings):
    if "mesh.fsdp" in settings:
      raise ValueError("does not divide")
    raise DoesNotFitError(Arguments(0, 0, 0), 2.0, 1.0)

  found = verify(CHANGES, attempt)
  assert not found.fits and "fsdp" not in found.flags and "remat" in found.flags
  assert verify(CHANGES[-1:], attempt) is None
