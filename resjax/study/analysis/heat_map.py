"""The token that every depth position of a decoder predicts at every token of a short text."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.models import Decoder, SiteVisit
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.lens import Lens, LensInputs
from resjax.study.analysis.probing import ProbeConfig
from resjax.study.analysis.prompts import rows_of


@dataclasses.dataclass(frozen=True)
class HeatMap:
  """The most probable tokens under the lens, by the closed reading.

  Attributes:
    positions: the P depth positions, in order.
    tokens: the most probable token for each token of the text [P, T].
    probabilities: the probabilities of these tokens [P, T].
  """

  positions: tuple[DepthPosition, ...]
  tokens: np.ndarray
  probabilities: np.ndarray


def heat_map(decoder: Decoder, tokens: np.ndarray, every: str = "layer") -> HeatMap:
  """Returns the heat map of a text [T], which is the same for any sharding and any processes.

  The depth positions are the embedding and the places behind every `layer` or every `site`.
  """
  layout, length = decoder.layout, len(tokens)
  rows = layout.split(rows_of([tokens], layout))
  graphdef, state = nnx.split(decoder)

  def run(state: PyTree, rows: Mapping[str, Array]) -> tuple[Array, Array]:
    return _most_probable(nnx.merge(graphdef, state), rows, every)

  found = jax.device_get(jax.jit(run, out_shardings=layout.everywhere)(state, rows))
  positions = ProbeConfig(every=every).positions(decoder.combinator)
  return HeatMap(positions, *(values[:, 0, :length] for values in found))


def _most_probable(decoder: Decoder, batch: Mapping[str, Array], every: str) -> tuple[Array, Array]:
  """Returns the most probable tokens and their probabilities, [P, B, T] each."""
  lens = Lens(decoder, chunk_size=1)
  tokens = batch["inputs"]
  inputs = lens.inputs(jnp.stack([tokens] * 3), jnp.zeros((1, *tokens.shape)))

  def look(hidden: Array, inputs: LensInputs) -> tuple[Array, Array]:
    log_p = jax.nn.log_softmax(lens.logits(lens.normed(hidden, inputs), inputs))
    return jnp.argmax(log_p, axis=-1).astype(jnp.int32), jnp.exp(jnp.max(log_p, axis=-1))

  def probe(visits: Sequence[SiteVisit], inputs: LensInputs) -> tuple[Array, Array]:
    ends = visits if every == "site" else visits[-1:]
    found = [look(visit.closed(), inputs) for visit in ends]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *found)

  run = decoder.probe(probe, inputs, tokens, batch["segment_ids"], batch["positions"])
  start = look(run.embedded, inputs)
  return jax.tree.map(
    lambda first, rest: jnp.concatenate([first[None], rest.reshape(-1, *rest.shape[2:])]),
    start,
    run.layers,
  )
