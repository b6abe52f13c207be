"""What every depth position of a decoder puts first at every token of one short text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.analysis.alignment import Position
from resjax.analysis.lens import Lens
from resjax.analysis.probing import ProbeConfig
from resjax.models.decoder import Decoder
from resjax.typing import Array

_MULTIPLE = 128  # of tokens, which attention kernels like


@dataclasses.dataclass(frozen=True)
class HeatMap:
  """The most probable token under the lens, closed reading.

  Attributes:
    positions: P depth positions, in order.
    tokens: ids [P, T].
    probabilities: of them [P, T].
  """

  positions: tuple[Position, ...]
  tokens: np.ndarray
  probabilities: np.ndarray


def heat_map(decoder: Decoder, tokens: np.ndarray, every: str = "layer") -> HeatMap:
  """Returns the map of one text; the same for any sharding and any processes.

  Args:
    decoder: any, sharded or not.
    tokens: of the text [T].
    every: a depth position after every `layer`, or after every `site`.
  """
  layout, length = decoder.layout, len(tokens)
  size = -(-length // _MULTIPLE) * _MULTIPLE
  row = np.zeros(size, np.int32)
  row[:length] = tokens
  batch = {
    "inputs": row,
    "segment_ids": (np.arange(size) < length).astype(np.int32),
    # Not beyond the text: there may be no learned positions, and NaN behind a mask is still NaN.
    "positions": np.minimum(np.arange(size, dtype=np.int32), length - 1),
  }
  copies = layout.num_shards("batch")  # one row cannot be split
  batch = layout.split({name: np.tile(array, (copies, 1)) for name, array in batch.items()})
  graphdef, state = nnx.split(decoder)

  def run(state, batch):
    return _first(nnx.merge(graphdef, state), batch, every)

  found = jax.device_get(jax.jit(run, out_shardings=layout.everywhere)(state, batch))
  positions = ProbeConfig(every=every).positions(decoder.combinator)
  return HeatMap(positions, *(values[:, 0, :length] for values in found))


def _first(decoder: Decoder, batch, every: str) -> tuple[Array, Array]:
  """Returns ids and probabilities of what each position puts first, [P, B, T] each."""
  lens = Lens(decoder, chunk_size=1)
  inputs = batch["inputs"]
  seen = lens.seen(jnp.stack([inputs] * 3), jnp.zeros((1, *inputs.shape)))

  def look(hidden, seen):
    log_p = jax.nn.log_softmax(lens.logits(lens.normed(hidden, seen), seen))
    return jnp.argmax(log_p, axis=-1).astype(jnp.int32), jnp.exp(jnp.max(log_p, axis=-1))

  def probe(visits, seen):
    ends = visits if every == "site" else visits[-1:]
    found = [look(visit.closed(), seen) for visit in ends]
    return jax.tree.map(lambda *parts: jnp.stack(parts), *found)

  run = decoder.probe(probe, seen, inputs, batch["segment_ids"], batch["positions"])
  start = look(run.embedded, seen)
  return jax.tree.map(
    lambda first, rest: jnp.concatenate([first[None], rest.reshape(-1, *rest.shape[2:])]),
    start,
    run.layers,
  )
