"""Models that transformers made and saved: same logits, same greedy texts.

The folders are written by tests/golden/huggingface/make.py. transformers_test.py does the same with
models made afresh.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.interop import huggingface
from resjax.models.sampling import generate
from tests.helpers import walks

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "huggingface"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))
PROMPT = 6


@functools.cache
def reference(name):
  with np.load(FOLDER / name / "reference.npz") as arrays:
    return dict(arrays)


def logits(decoder, rows):
  """Returns the logits of whole rows, computed without a cache."""
  graphdef, state = nnx.split(decoder)

  @jax.jit
  def run(state, rows):
    model = nnx.merge(graphdef, state)
    return model.logits(model(rows))

  return np.asarray(run(state, jnp.asarray(rows)))


def divergence(got, want):
  """Returns the KL divergence between the distributions of two sets of logits, per token."""
  p, q = (
    np.float64(a) - np.logaddexp.reduce(np.float64(a), -1, keepdims=True) for a in (want, got)
  )
  return np.sum(np.exp(p) * (p - q), axis=-1)


def compare(decoder, found):
  """Returns the largest difference of logits, the largest KL, and how many greedy tokens differ."""
  tokens, greedy = found["tokens"], found["greedy"]
  padded = np.pad(tokens, ((0, 0), (0, greedy.shape[1] - tokens.shape[1])))
  both = logits(decoder, np.concatenate([padded, greedy]))
  got, along = both[: len(tokens), : tokens.shape[1]], both[len(tokens) :]
  wrong = np.sum(np.argmax(along[:, PROMPT - 1 : -1], axis=-1) != greedy[:, PROMPT:])
  return np.abs(got - found["logits"]).max(), divergence(got, found["logits"]).max(), wrong


def cached_greedy(decoder, prompt, count):
  graphdef, state = nnx.split(decoder)

  @jax.jit
  def run(state, prompt):
    model = nnx.merge(graphdef, state)
    return generate(model, prompt, count, temperature=0, key=jax.random.key(0))

  return np.asarray(run(state, jnp.asarray(prompt)))


def test_every_family_is_there():
  configs = [huggingface.read_config(FOLDER / name) for name in NAMES]
  assert {huggingface.find_family(config)[0].model_type for config in configs} == set(
    huggingface.FAMILIES
  )


# One or two of each kind of layer; the other families are slow tests.
QUICK = ("llama", "gpt2", "gpt_neox", "gemma2", "olmo3", "phi3", "qwen3", "stablelm", "qwen3_moe")


@walks.names(*QUICK, slow=huggingface.FAMILIES.keys() & set(NAMES), among=NAMES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name):
  decoder, found = huggingface.load(FOLDER / name), reference(name)
  difference, kl, wrong = compare(decoder, found)
  assert difference <= 1e-4
  assert kl <= 1e-6
  assert wrong == 0
  greedy = found["greedy"]
  count = greedy.shape[1] - PROMPT
  assert count == 64
  np.testing.assert_array_equal(cached_greedy(decoder, greedy[:, :PROMPT], count), greedy)


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_rotated_pairs_in_another_order_are_not_the_same_model(name):
  """Meta's own checkpoints have rotary pairs side by side, not half a head apart."""
  decoder = huggingface.load(FOLDER / name)
  rotation, width = decoder.config.layer_ropes[0], decoder.config.head_dim
  turned = rotation.width(width)
  order = np.arange(width)
  order[:turned] = np.arange(turned).reshape(2, -1).T.ravel()
  for linear in (decoder.layers.attention.q_proj, decoder.layers.attention.k_proj):
    kernel = linear.kernel[...]
    heads = kernel.reshape(*kernel.shape[:-1], -1, width)
    linear.kernel[...] = heads[..., order].reshape(kernel.shape)
  difference, kl, wrong = compare(decoder, reference(name))
  assert difference > 1e-2
  assert kl > 1e-4
  assert wrong > 0
