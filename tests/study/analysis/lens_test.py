"""The lens of hidden states that are NaN."""

import jax.numpy as jnp
import numpy as np

from resjax.study.analysis.lens import PER_TOKEN, Lens
from tests.helpers import decoders


def test_no_token_has_a_good_rank_where_logits_are_nan():
  decoder = decoders.decoder(decoders.config())
  lens, shape = Lens(decoder, chunk_size=4), (1, 4)
  inputs = lens.inputs(jnp.zeros((3, *shape), jnp.int32), jnp.ones((1, *shape)))
  sums = lens.sums(jnp.full((*shape, decoder.config.d_model), jnp.nan), inputs)[:, 0, 0]
  found = dict(zip(PER_TOKEN, np.asarray(sums) / 4, strict=True))
  for name in ("input", "next", "shuffled"):
    assert found[f"{name}_rank"] == decoder.config.vocab_size + 1
    assert found[f"{name}_first"] == 0
