"""The next-token loss of a decoder."""

from collections.abc import Mapping

import jax.numpy as jnp

from resjax.losses import LossSums, cross_entropy, sharded_cross_entropy
from resjax.models.decoder import Decoder
from resjax.typing import Array


def loss_sums(
  decoder: Decoder, batch: Mapping[str, Array], token_bytes: Array | None, chunk_size: int
) -> LossSums:
  """Returns the loss sums of a batch.

  Args:
    decoder: with its parameters.
    batch: `inputs`, `targets`, `segment_ids`, `positions`, [B, T] each; segment 0 is padding.
    token_bytes: [V] bytes that each token stands for; None: they are not counted.
    chunk_size: tokens whose logits exist at one time.
  """
  hidden = decoder(batch["inputs"], batch["segment_ids"], batch["positions"])
  weights = (batch["segment_ids"] != 0).astype(jnp.float32)
  arguments = hidden, decoder.head, batch["targets"], weights
  softcap = decoder.config.logit_softcap
  options = {"chunk_size": chunk_size, "token_bytes": token_bytes, "softcap": softcap}
  mesh = decoder.layout.mesh
  if mesh is None or mesh.size == 1:
    return cross_entropy(*arguments, **options)
  spec = decoder.layout.spec("batch", "tokens")
  return sharded_cross_entropy(*arguments, mesh=mesh, spec=spec, **options)
