"""The next-token loss of a decoder."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Float, Int

from resjax.base import NOT_ASKED, Array
from resjax.models.decoder import Decoder
from resjax.models.losses import LossSums, cross_entropy, sharded_cross_entropy


def loss_sums(
  decoder: Decoder,
  hidden: Float[Array, "B T D"],
  batch: Mapping[str, Int[Array, "B ..."]],
  chunk_size: int,
  by_row: bool = False,
) -> LossSums:
  """Returns the loss sums of a batch.

  Args:
    decoder: the decoder with its parameters.
    hidden: its final hidden states of the batch.
    batch: `targets` and `segment_ids` [B, T]; segment 0 is padding, and nothing is asked for where
      the target is `NOT_ASKED`. Where it has `bytes` [B], the UTF-8 bytes of text that the targets
      of each row stand for, these are summed too.
    chunk_size: the number of tokens whose logits exist at one time.
    by_row: whether each row has sums of its own, [B] each.
  """
  asked = (batch["segment_ids"] != 0) & (batch["targets"] != NOT_ASKED)
  weights = asked.astype(jnp.float32)
  arguments = hidden, decoder.head, batch["targets"], weights
  options: dict[str, Any] = {"chunk_size": chunk_size, "softcap": decoder.config.logit_softcap}
  options["by_row"] = by_row
  layout = decoder.layout
  if not layout.spans_devices:
    sums = cross_entropy(*arguments, **options)
  else:
    spec = layout.spec("batch", "tokens")
    sums = sharded_cross_entropy(*arguments, mesh=layout.mesh, spec=spec, **options)
  if "bytes" not in batch:
    return sums
  counts = batch["bytes"] if by_row else jnp.sum(batch["bytes"])
  return dataclasses.replace(sums, bytes=counts.astype(jnp.float32))
