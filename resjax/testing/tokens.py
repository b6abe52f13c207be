"""Checks of what a combinator does among tokens: none sees a later one, also token by token."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import PyTree
from resjax.combinators import TokenContext
from resjax.models import depth
from resjax.testing import toy
from resjax.testing.compare import ALIKE, assert_close
from resjax.testing.subject import Subject


def causal(subject: Subject) -> None:
  """No output depends on a later token; without a `decode_cache` tokens are kept apart."""
  found = tokens_seen(subject, mixes=True)
  assert (found[np.triu_indices(toy.T, 1)] == 0).all(), "an output depends on a later token"
  assert (found[np.tril_indices(toy.T)] > 0).all(), "an output misses an earlier token"
  local = tokens_seen(subject, mixes=False)
  mixes = subject.abstract().decode_cache(1, "float32") is not None
  assert (local.diagonal() > 0).all(), "an output does not depend on its own token"
  seen = bool((local[~np.eye(toy.T, dtype=bool)] > 0).any())
  assert seen == mixes, (
    "it mixes tokens and has no decode_cache, which decoding needs"
    if seen
    else "it has a decode_cache and mixes no tokens"
  )


def tokens_seen(subject: Subject, *, mixes: bool) -> np.ndarray:
  """Returns the largest |d output of token t / d input of token s| [T, T].

  Args:
    subject: what is checked.
    mixes: whether the branches mix tokens, causally.
  """
  x = toy.embeddings()[:1]
  return np.abs(_jacobian(subject)(x, mixes)).max(axis=(1, 2, 4))


@functools.lru_cache(maxsize=1)
def _jacobian(subject: Subject) -> Callable[..., jax.Array]:
  made, layers = subject.moved(), toy.layers(subject.num_layers)

  def output(x: jax.Array, mixes: jax.Array) -> jax.Array:
    branch = functools.partial(toy.branch, mix_tokens=mixes)
    return toy.by_hand(made, layers, x, branch)[0]

  return jax.jit(jax.jacrev(output))


def decoding(subject: Subject) -> None:
  """Decoding tokens in chunks, each with the cache of earlier ones, equals one pass over all.

  Every row has another number of tokens in a chunk, with padding behind them.
  """
  made, (layers, x) = subject.moved(), subject.inputs()
  branch = functools.partial(toy.token_local_branch, pre_norm=made.pre_norm)
  graphdef, state = nnx.split(made)

  @jax.jit
  def some(
    state: PyTree, x: jax.Array, segment_ids: jax.Array, cache: PyTree
  ) -> tuple[jax.Array, PyTree]:
    made, tokens = nnx.merge(graphdef, state), TokenContext(segment_ids, cache)
    unroll = made.strategy == "loop"
    last, _ = depth.run_layers(made, layers, x, branch, tokens=tokens, unroll=unroll)
    return made.final(last.state), made.next_cache(last.state)

  @jax.jit
  def run(state: PyTree, x: jax.Array) -> jax.Array:
    return toy.run(nnx.merge(graphdef, state), layers, x, toy.token_local_branch, unroll=True)

  want, _ = some(state, x, jnp.ones(x.shape[:2], jnp.int32), made.decode_cache(toy.B, x.dtype))
  cache, done, got = made.decode_cache(toy.B, x.dtype), np.zeros(toy.B, int), np.zeros_like(want)
  for width in (2, 1, toy.T - 2, toy.T):
    # The first row has as many tokens as there is room for, the others have one less, or none.
    counts = np.minimum(width - (np.arange(toy.B) > 0), toy.T - done)
    chunk, ids = np.zeros((toy.B, width, x.shape[-1]), x.dtype), np.zeros((toy.B, width), np.int32)
    for row, count in enumerate(counts):
      chunk[row, :count] = x[row, done[row] : done[row] + count]
      ids[row, :count] = 1
    out, cache = some(state, chunk, ids, cache)
    for row, count in enumerate(counts):
      got[row, done[row] : done[row] + count] = out[row, :count]
    done += counts
  assert (done == toy.T).all()
  assert_close(got, want, ALIKE)
  assert_close(want, run(state, x), ALIKE)
