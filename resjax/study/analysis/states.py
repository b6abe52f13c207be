"""The hidden states of a decoder at every depth position, as they are."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import Array, PyTree
from resjax.models import Decoder, SiteVisit
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.probing import ProbeConfig, state_at


def states(
  decoder: Decoder,
  tokens: Array,
  segment_ids: Array | None = None,
  positions: Array | None = None,
  *,
  every: str = "layer",
  reading: str = "closed",
) -> dict[DepthPosition, Array]:
  """Returns the hidden states [B, T, D] of some tokens by depth position, in order of depth.

  An `Alignment` measures the same states. decoder.logits(decoder.final_norm(h)) are the logits of
  the model for the state h at the last position, which is the output of the layers before the final
  norm, and the logits of the logit lens for any other state. `hidden_states` of transformers has
  the same arrays for a plain residual path, but the last one after the final norm.

  Args:
    decoder: any decoder, sharded or not.
    tokens: the token numbers [B, T].
    segment_ids, positions: as in `Decoder.__call__`.
    every: `layer` or `site`: the positions are the embedding, and the places behind each of these.
    reading: `closed`: the state as if the layers ended there; or `read`: what the next site reads.
  """
  named = ProbeConfig(every=every, readings=(reading,)).positions(decoder.combinator)
  graphdef, parameters = nnx.split(decoder)

  @jax.jit
  def run(
    parameters: PyTree, tokens: Array, segment_ids: Array | None, positions: Array | None
  ) -> Array:
    model = nnx.merge(graphdef, parameters)
    return trajectory(model, tokens, segment_ids, positions, every, reading)

  found = run(parameters, jnp.asarray(tokens), segment_ids, positions)
  return dict(zip(named, found, strict=True))


def trajectory(
  decoder: Decoder,
  tokens: Array,
  segment_ids: Array | None,
  positions: Array | None,
  every: str = "layer",
  reading: str = "closed",
) -> Array:
  """Returns the states of `states` in one array [P, B, T, D]; it can be compiled."""

  def probe(visits: Sequence[SiteVisit], _: PyTree) -> Array:
    ends = [[visit] for visit in visits] if every == "site" else [visits]
    return jnp.stack([state_at(part, reading) for part in ends])

  run = decoder.probe(probe, None, tokens, segment_ids, positions)
  inside = run.layers.reshape(-1, *run.embedded.shape)
  if reading == "closed":
    return jnp.concatenate([run.embedded[None], inside])
  return jnp.concatenate([inside, run.output[None]])
