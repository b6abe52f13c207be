"""The next-token loss of a decoder."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from resjax.losses import LossSums, cross_entropy, sharded_cross_entropy
from resjax.models.decoder import Decoder
from resjax.typing import NOT_ASKED, Array


def loss_sums(
  decoder: Decoder, batch: Mapping[str, Array], token_bytes: Array | None, chunk_size: int
) -> LossSums:
  """Returns the loss sums of a batch.

  Args:
    decoder: the decoder with its parameters.
    batch: `inputs`, `targets`, `segment_ids` and `positions`, [B, T] each; segment 0 is padding,
      and nothing is asked for where the target is `NOT_ASKED`.
    token_bytes: how many UTF-8 bytes each token stands for [V]; None: bytes are not counted.
    chunk_size: the number of tokens whose logits exist at one time.
  """
  hidden = decoder(batch["inputs"], batch["segment_ids"], batch["positions"])
  asked = (batch["segment_ids"] != 0) & (batch["targets"] != NOT_ASKED)
  weights = asked.astype(jnp.float32)
  arguments = hidden, decoder.head, batch["targets"], weights
  softcap = decoder.config.logit_softcap
  options: dict[str, Any] = {
    "chunk_size": chunk_size,
    "token_bytes": token_bytes,
    "softcap": softcap,
  }
  layout = decoder.layout
  if not layout.spans_devices:
    return cross_entropy(*arguments, **options)
  spec = layout.spec("batch", "tokens")
  return sharded_cross_entropy(*arguments, mesh=layout.mesh, spec=spec, **options)
