"""Decoders that have learned: transformers runs their folders as resjax does, also in bfloat16.

The parameters of the other tests are random, and some systems enlarge what such parameters lose
when they are rounded. What people export has been trained; here for 200 steps of 256 bytes.
"""

import argparse
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from resjax.interop import huggingface
from tests.helpers import decoders
from tests.interop.huggingface.golden_test import logits
from tests.interop.huggingface.remote_code import folders
from tests.interop.huggingface.remote_code.cases import CASES

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.release]

STEPS, ROWS, LENGTH = 200, 8, 32
SIZES = {"vocab_size": 256, "d_model": 64, "mlp_dim": 176, "init_std": 0.02}
WARMUP, LEARNING_RATE = 20, 5e-3


@functools.cache
def text():
  """The bytes of a module of the standard library, which every Python has."""
  return np.frombuffer(pathlib.Path(argparse.__file__).read_bytes(), np.uint8).astype(np.int32)


def rows(rng, count):
  starts = rng.integers(0, len(text()) - LENGTH, count)
  return text()[starts[:, None] + np.arange(LENGTH)]


def trained(config):
  """Returns the decoder, and its losses over the steps, in nats per byte."""
  graphdef, params = nnx.split(decoders.decoder(config, random=False))
  rate = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, WARMUP, STEPS, 0.0)
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95))

  def loss(params, tokens):
    model = nnx.merge(graphdef, params)
    predicted = model.logits(model(tokens))[:, :-1]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(predicted, tokens[:, 1:]))

  def step(carry, tokens):
    params, state = carry
    value, grads = jax.value_and_grad(loss)(params, tokens)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), value

  tokens = rows(np.random.default_rng(0), STEPS * ROWS).reshape(STEPS, ROWS, LENGTH)
  run = jax.jit(lambda carry: jax.lax.scan(step, carry, tokens))
  (params, _), losses = run((params, optimizer.init(params)))
  return nnx.merge(graphdef, params), np.asarray(losses)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_trained_decoder_in_both_precisions(case, tmp_path):
  decoder, losses = trained(dataclasses.replace(case.config, **SIZES))
  huggingface.export(decoder, tmp_path / "model", with_code=True)
  tokens = rows(np.random.default_rng(1), 8)
  want = logits(decoder, tokens)
  got = {}
  for dtype in (torch.float32, torch.bfloat16):
    with torch.no_grad():
      found = folders.model(tmp_path / "model", dtype=dtype)(torch.tensor(tokens)).logits
    got[dtype] = found.float().numpy() - want
  farthest = np.abs(got[torch.float32]).max()
  rounding = np.sqrt(np.mean(got[torch.bfloat16] ** 2) / np.mean(want**2))
  print(f"{case}: loss {losses[:10].mean():.2f} -> {losses[-10:].mean():.2f}; "
        f"float32 {farthest:.1e} of {np.abs(want).max():.1f}, bfloat16 {rounding:.1e}")  # fmt: skip
  assert losses[-10:].mean() < losses[:10].mean() - 1
  assert farthest <= 1e-4
  assert rounding <= 2e-2
