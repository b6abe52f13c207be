"""The two-phase form of Block Attention Residuals is its direct read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers.reference import rms
from tests.helpers.systems.common import sublayers

EPS = 1e-6


def phase_one(readers, blocks):
  """(m, ℓ, o) of every reader of a block over the completed blocks, before any of them runs."""
  parts = []
  for w, gamma in readers:
    scores = [np.sum(w * gamma * rms(b, EPS), axis=-1, keepdims=True) for b in blocks]
    m = np.max(scores, axis=0)
    ell = sum(np.exp(s - m) for s in scores)
    parts.append((m, ell, sum(np.exp(s - m) * b for s, b in zip(scores, blocks, strict=True))))
  return parts


def phase_two(reader, part, partial):
  """Merges what the completed blocks gave with the running sum, if there is one."""
  (w, gamma), (m, ell, o) = reader, part
  if partial is None:
    return o / ell
  s = np.sum(w * gamma * rms(partial, EPS), axis=-1, keepdims=True)
  top = np.maximum(m, s)
  a, b = np.exp(m - top), np.exp(s - top)
  return (a * o + b * partial) / (a * ell + b)


def two_phase(params, weights, x, sites, layers_per_block):
  steps = list(sublayers(weights, sites))
  length = layers_per_block * len(sites)
  blocks = [x]
  for start in range(0, len(steps), length):
    block = steps[start : start + length]
    rows = [(layer, index) for layer, index, _ in block]
    readers = [(params["query"][row], params["key_scale"][row]) for row in rows]
    partial = None
    for (_, _, run), reader, part in zip(block, readers, phase_one(readers, blocks), strict=True):
      out = run(phase_two(reader, part, partial))[1]
      partial = out if partial is None else partial + out
    blocks.append(partial)
  output = params["final_query"], params["final_key_scale"]
  return phase_two(output, *phase_one([output], blocks), None)


@pytest.mark.parametrize("layers_per_block", [1, 2, 5])
@pytest.mark.parametrize("sites", [toy.SITES, ("mlp",)], ids="+".join)
def test_two_phase_form_is_the_direct_read(layers_per_block, sites):
  with jax.enable_x64(True):
    made = toy.build("block_attn_res", {"layers_per_block": layers_per_block}, sites=sites)
    layers, x = toy.layers(sites=sites, dtype=float), toy.embeddings(float)
    got = toy.compiled_by_hand(made, jax.tree.map(jnp.asarray, layers), jnp.asarray(x))
    params = toy.parameters(made)
  assert_close(got, two_phase(params, layers, x, sites, layers_per_block), 1e-12)
