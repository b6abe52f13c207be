"""Echo: every sublayer hears the fading sum of all earlier outputs once more."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators


class EchoState(NamedTuple):
  """The stream and the echo, [B, T, D] each."""

  stream: jax.Array
  echo: jax.Array


class Echo(combinators.Combinator):
  """x ← x + f(x) + g ⊙ e, and e ← decay · e + f(x), with e = 0 at first.

  g [L, sites, D] is learned and 0 at init, which is `standard`. The first site hears nothing.

  Args:
    decay: how much of the echo each sublayer leaves to the next, in [0, 1).

  Raises:
    ValueError: decay is out of range.
  """

  per_layer = ("gain",)  # layer i uses row i alone
  family = "scalars"

  def __init__(self, *, decay: float = 0.5, **options: Any):
    super().__init__(**options)
    if not 0 <= decay < 1:
      raise ValueError(f"decay={decay} is out of range; allowed: 0 <= decay < 1")
    self.decay = decay
    self.gain = nnx.Param(jnp.zeros((self.num_layers, len(self.sites), self.d_model)))

  def init(self, x, tokens=None):
    """Returns the embeddings [B, T, D] as the stream, and silence."""
    return EchoState(x, jnp.zeros_like(x))

  def read(self, state, layer, site):
    """Returns the stream [B, T, D] as the one view of a site, and no tape."""
    return {"x": state.stream}, None

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    """Adds the output and the echo to the stream, and the output to the echo."""
    # `layer` is a traced number in a scan, which hands over row `layer` of the gains alone.
    gain = self._row(self.gain, layer, site)
    heard = gain * state.echo.astype(jnp.float32)
    stream = state.stream + out + heard.astype(out.dtype)
    return EchoState(stream, self.decay * state.echo + out)

  def final(self, state):
    """Returns the stream [B, T, D]; what still echoes is lost."""
    return state.stream
