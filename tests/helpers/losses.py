"""The loss of a decoder by the plain program of training and evaluation."""

import jax
from flax import nnx

from resjax.models.loss import loss_sums


def text_loss(decoder, batch, chunk_size):
  """The loss sums of a batch."""
  hidden = decoder(batch["inputs"], batch["segment_ids"], batch["positions"])
  return loss_sums(decoder, hidden, batch, chunk_size)


def nats_per_token(decoder, batches, options=None):
  """Of all batches, dicts of `split_rows`, of one shape."""
  graphdef, state = nnx.split(decoder)

  def sums(state, batch):
    return text_loss(nnx.merge(graphdef, state), batch, 1024)

  program = jax.jit(sums, compiler_options=options)
  # One after another: runs over eight devices, side by side on few cores, can wait for each other.
  found = [jax.device_get(program(state, decoder.layout.split(batch))) for batch in batches]
  return sum(float(s.nats) for s in found) / sum(float(s.tokens) for s in found)
