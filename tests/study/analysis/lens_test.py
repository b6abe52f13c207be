"""The lens does not depend on the parts of the vocabulary, and gives NaN no good rank."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from resjax.models.model_def import ModelDef
from resjax.study.analysis.lens import PER_TOKEN, Lens, _Softmax
from tests.helpers import decoders, jaxprs, layouts

B, T = 8, 4
HIGHEST = (jax.lax.Precision.HIGHEST,) * 2
SHARDED = {"data": 2, "fsdp": 2, "tensor": 2}


def found(decoder, hidden, ids, words):
  """Returns the mean of each metric, and KL(the first rows ‖ the others), by parts of V."""

  @jax.jit
  def sums(hidden, ids):
    lens = Lens(decoder, 4, words)
    inputs = lens.inputs(ids, jnp.ones((1, B, T)))
    normed = lens.normed(hidden, inputs)
    kl = lens.kl_sums(normed, jnp.stack([normed, -normed]), inputs.weights, inputs)
    return lens.sums(hidden, inputs), kl

  values, kl = jax.device_get(sums(hidden, ids))
  return dict(zip(PER_TOKEN, values.sum(axis=(1, 2)) / (B * T), strict=True)), kl.sum(axis=(1, 2))


@pytest.mark.parametrize(("dtype", "precision"), [("float32", HIGHEST), ("bfloat16", None)])
def test_a_token_and_all_words_are_multiplied_with_one_precision(dtype, precision):
  """Which accelerators else choose by the size of a product; rounded factors lose nothing more."""
  config = decoders.config(vocab_size=32, dtype=dtype)
  decoder, ids = decoders.decoder(config), jnp.zeros((3, B, T), int)

  def sums(hidden):
    lens = Lens(decoder, 4, 0)
    return lens.sums(hidden, lens.inputs(ids, jnp.ones((1, B, T))))

  made = jax.make_jaxpr(sums)(jnp.ones((B, T, config.d_model), dtype))
  found = [
    one.params["precision"]
    for one in jaxprs.equations(made.jaxpr)
    if one.primitive.name == "dot_general"
    if one.invars[0].aval.dtype == dtype and config.d_model in one.invars[0].aval.shape
  ]
  assert found == [precision] * 2


@pytest.mark.parametrize("words", [1, 7, 32, 0])
@pytest.mark.parametrize("rules", [None, pytest.param("fsdp_tp", marks=pytest.mark.slow)])
def test_parts_of_the_vocabulary_give_what_all_of_it_gives(words, rules):
  config = decoders.config(vocab_size=32, logit_softcap=9.0)
  decoder, rng = decoders.decoder(config), np.random.default_rng(0)
  hidden = 3 * rng.normal(size=(B, T, config.d_model)).astype(np.float32)
  ids = rng.integers(0, 32, (3, B, T)).astype(np.int32)
  logits = np.asarray(decoder.logits(decoder.final_norm(hidden)), np.float64)
  opposite = np.asarray(decoder.logits(-decoder.final_norm(hidden)), np.float64)
  if rules:
    made = ModelDef(config, layouts.layout(rules, **SHARDED))
    decoder = made.bind(jax.tree.map(
      lambda leaf, like: jax.device_put(np.asarray(leaf), like.sharding),
      nnx.to_pure_dict(nnx.state(decoder)), made.abstract,
    ))  # fmt: skip
  got, kl = found(decoder, hidden, ids, words)
  log_p, other = (scipy.special.log_softmax(one, axis=-1) for one in (logits, opposite))
  p = np.exp(log_p)
  want = {"entropy": -np.sum(p * log_p, axis=-1)}
  for name, tokens in zip(("input", "next", "shuffled"), ids, strict=True):
    own = np.take_along_axis(log_p, tokens[..., None], axis=-1)
    rank = 1 + np.sum(log_p > own, axis=-1)
    want |= {f"{name}_nats": -own, f"{name}_rank": rank, f"{name}_log_rank": np.log(rank)}
    want |= {f"{name}_probability": np.exp(own), f"{name}_first": rank == 1}
  for name, values in want.items():
    np.testing.assert_allclose(got[name], values.mean(), rtol=2e-6, err_msg=name)
  np.testing.assert_allclose(kl, [0, np.sum(p * (log_p - other))], rtol=2e-6, atol=1e-4)


def test_the_best_token_is_certain_where_logits_are_large():
  """As at the embedding of Gemma, where float32 rounds a logit of 1,000 by 6e-5."""
  config = decoders.config(vocab_size=32, d_model=256)
  decoder, rng = decoders.decoder(config), np.random.default_rng(0)
  decoder.final_norm.scale[...] *= 1000
  hidden = rng.normal(size=(B, T, config.d_model)).astype(np.float32)
  logits = np.float64(decoder.final_norm(hidden)) @ np.float64(decoder.head).T
  log_p = scipy.special.log_softmax(logits, axis=-1)
  best = np.broadcast_to(np.argmax(logits, axis=-1), (3, B, T))
  got, _ = found(decoder, hidden, best.astype(np.int32), 7)
  np.testing.assert_allclose(got["next_probability"], np.exp(log_p.max(-1)).mean(), rtol=1e-6)


def test_large_logits_round_no_nats():
  logits = np.float32([1000.5, 1001, 1000.25])
  sums = _Softmax.of_nothing((), jnp.float32).with_words(logits, logits, np.ones(3, bool))
  want = scipy.special.logsumexp(np.float64(logits)) - 1000.5
  np.testing.assert_allclose(sums.nats(logits[0]), want, rtol=1e-6)


def test_no_token_has_a_good_rank_where_logits_are_nan():
  decoder = decoders.decoder(decoders.config())
  lens, shape = Lens(decoder, chunk_size=4), (1, 4)
  inputs = lens.inputs(jnp.zeros((3, *shape), jnp.int32), jnp.ones((1, *shape)))
  sums = lens.sums(jnp.full((*shape, decoder.config.d_model), jnp.nan), inputs)[:, 0, 0]
  found = dict(zip(PER_TOKEN, np.asarray(sums) / 4, strict=True))
  for name in ("input", "next", "shuffled"):
    assert found[f"{name}_rank"] == decoder.config.vocab_size + 1
    assert found[f"{name}_first"] == 0
