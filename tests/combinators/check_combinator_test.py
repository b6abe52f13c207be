"""`check_combinator` names what is wrong with a combinator, in one line for each check."""

import jax.numpy as jnp
import pytest
from flax import nnx

from resjax.combinators import Standard
from resjax.testing import CHECKS, check_combinator

FAST = {"protocol", "declarations", "counts"}


class Mute(Standard):
  """A gain that nothing uses."""

  def __init__(self, **options):
    super().__init__(**options)
    self.gain = nnx.Param(jnp.ones(self.d_model))


class Misdeclared(Standard):
  per_layer = ("gone",)


class Wide(Standard):
  """Hands on float32 whatever it is given."""

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state.astype(jnp.float32) + out


class Peeking(Standard):
  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state + out + out.mean(axis=1, keepdims=True)


class Doubled(Standard):
  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return 2 * state + out


class Indexed(Standard):
  """Does something else where `layer` is no Python int, as in a scan."""

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state + (1 if isinstance(layer, int) else 2) * out


class Cheap(Standard):
  def flops_per_token(self):
    return 1


class Narrow(Standard):
  def __init__(self, *, num_layers, **options):
    super().__init__(num_layers=2, **options)


class Broken(Standard):
  def read(self, state, layer, site):
    raise KeyError("lost")


@pytest.mark.parametrize(
  ("cls", "check", "words"),
  [
    (Mute, "gradients", "gain gets no gradient at (0,)"),
    (Misdeclared, "declarations", "per_layer names {'gone'}"),
    (Wide, "bfloat16", "raises TypeError: scan body function carry input and carry output must"),
    (Peeking, "causal", "an output depends on a later token"),
    (Doubled, "init", "not `standard`; set equals_standard_at_init = False"),
    (Indexed, "scan", "relative L2 error above 1e-12"),
    (Cheap, "counts", "flops_per_token says 1, its trace has"),
    (Narrow, "protocol", "it was made for (3, 8"),
    (Broken, "protocol", "raises KeyError: 'lost'"),
  ],
)
def test_a_failure_has_the_name_of_its_check(cls, check, words):
  with pytest.raises(AssertionError) as raised:
    check_combinator(cls, without=set(CHECKS) - {check})
  title, line = str(raised.value).splitlines()
  assert title == f"{cls.__name__}: 1 of 1 checks fail"
  assert line.startswith(f"{check} (") and words in line


def test_every_failing_check_has_a_line():
  with pytest.raises(AssertionError) as raised:
    check_combinator(Broken, without=set(CHECKS) - {"protocol", "counts"})
  assert str(raised.value).startswith("Broken: 2 of 2 checks fail\nprotocol (")
  assert len(str(raised.value).splitlines()) == 3


def test_options_and_names_of_systems():
  check_combinator("gate", granularity="token", without=set(CHECKS) - FAST)
  with pytest.raises(ValueError, match="without='scann' is no check; allowed: protocol"):
    check_combinator("gate", without=("scann",))
