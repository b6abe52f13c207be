"""Calls with arrays of other axes or kinds than annotations say: checks refuse them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from resjax.combinators import Standard, scaled_add
from resjax.kernels import depth_attention, gated_streams, self_attention, streams, sum_of_products
from resjax.models import sampling

T, D = 3, 8
X = jnp.zeros((2, T, D))
Q = jnp.zeros((2, T, 4, 5))
IDS = jnp.ones((2, T), int)


@pytest.mark.parametrize(
  "call",
  [
    lambda: scaled_add(jnp.ones((), int), X, X),
    lambda: Standard(num_layers=1, d_model=D).write(X, 0, "mlp", X[:, 1:]),
    lambda: sampling.restrict(jnp.zeros(D, int)),
    lambda: sum_of_products(jnp.zeros((2, T)), jnp.zeros((3, T))),
    lambda: depth_attention.depth_attention([X, X], jnp.zeros((D, 1))),
    lambda: depth_attention.depth_attention([X, X], jnp.zeros(D), key_scale=jnp.zeros(D + 1)),
    lambda: depth_attention.depth_attention_block([X], jnp.zeros(D)),
    lambda: depth_attention.depth_sum(depth_attention.Sources((X,)), jnp.zeros(1, int)),
    lambda: streams.sinkhorn(3, jnp.zeros((2, 3))),
    lambda: gated_streams.gated_read(
      X, jnp.ones((2, D)), jnp.ones((2, D, 4)), jnp.ones((2, D, 4)), None
    ),
    lambda: self_attention.cached_attention(Q, Q, Q[:, 1:], IDS, IDS, 0),
    lambda: self_attention.cached_attention(Q, Q, Q, IDS.astype(float), IDS, 0),
  ],
)
def test_a_wrong_array_is_refused(call):
  with pytest.raises(TypeCheckError):
    call()


def test_a_right_array_is_taken():
  sources = [X, X, X.astype(jnp.float32)]
  h = depth_attention.depth_attention(sources, np.zeros(D, np.float32))
  reads = depth_attention.depth_attention_block(sources, jnp.zeros((2, D)))
  y, running, _ = depth_attention.depth_attention_merge(reads, 1, X, jnp.zeros(D))
  assert h.shape == y.shape == running.shape == X.shape
  out = jax.eval_shape(
    lambda x, q: depth_attention.depth_attention([x], q), X, jax.ShapeDtypeStruct((D,), X.dtype)
  )
  assert out.shape == X.shape
  past = jnp.zeros((2, T + 1, 4, 5))
  out = self_attention.cached_attention(Q, past, past, IDS, jnp.ones((2, T + 1), int), 1)
  assert out.shape == Q.shape
