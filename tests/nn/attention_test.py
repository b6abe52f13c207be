import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.nn.attention import Attention
from resjax.nn.rope import Rope, Rotation
from resjax.testing.compare import assert_close
from tests.helpers import reference

B, T, D, H, K, C = 2, 6, 10, 4, 2, 6  # H · C is not D
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 1, 0]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 0]])


def attention(**changes):
  options = {"qk_norm": "none", "bias": True} | changes
  module = Attention(
    D, H, K, C, norm_eps=1e-6, std=0.4, value_std=0.4, out_std=0.4, implementation="auto",
    dtype="float32", layout=Layout(), rngs=nnx.Rngs(0), **options,
  )  # fmt: skip
  rng = np.random.default_rng(1)
  graphdef, state = nnx.split(module)
  state = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape) / 2, a.dtype), state)
  return nnx.merge(graphdef, state), jax.tree.map(np.float64, nnx.to_pure_dict(state))


def in_numpy(p, views, rope_theta, qk_norm):
  def heads(x, name):
    x = x @ p[name]["kernel"] + p[name].get("bias", 0)
    return x.reshape(B, T, -1, C)

  def prepared(x, name):
    if qk_norm == "heads":
      x = reference.rms(x.reshape(B, T, -1), 1e-6) * p[name]["scale"]
      x = x.reshape(B, T, -1, C)
    if qk_norm == "head":
      x = reference.rms(x, 1e-6) * p[name]["scale"]
    if rope_theta:
      pairs = x[..., : C // 2] + 1j * x[..., C // 2 :]
      angles = POSITIONS[:, :, None, None] * rope_theta ** (-2.0 * np.arange(C // 2) / C)
      pairs = pairs * np.exp(1j * angles)
      x = np.concatenate([pairs.real, pairs.imag], axis=-1)
    return x

  q, k, v = (heads(x, f"{n}_proj") for x, n in zip(views, "qkv", strict=True))
  mixed = reference.causal_attention(prepared(q, "q_norm"), prepared(k, "k_norm"), v, SEGMENTS)
  return mixed.reshape(B, T, H * C) @ p["o_proj"]["kernel"] + p["o_proj"].get("bias", 0)


@pytest.mark.parametrize("rope_theta", [None, 100.0])
@pytest.mark.parametrize("qk_norm", ["none", "head", "heads"])
@pytest.mark.parametrize("bias", [False, True])
def test_three_views_in_numpy(rope_theta, qk_norm, bias):
  module, p = attention(qk_norm=qk_norm, bias=bias)
  views = np.random.default_rng(2).normal(size=(3, B, T, D)).astype(np.float32)
  rotation = Rotation((rope_theta and Rope(rope_theta),))
  place = {"segment_ids": SEGMENTS, "positions": jnp.asarray(POSITIONS), "rotation": rotation}
  got, _ = module(*map(jnp.asarray, views), **place)
  assert_close(got, in_numpy(p, np.float64(views), rope_theta, qk_norm), 2e-6)


@pytest.mark.parametrize("qk_norm", ["none", "head", "heads"])
def test_parameter_shapes(qk_norm):
  module, _ = attention(qk_norm=qk_norm, bias=False)
  shapes = jax.tree.map(np.shape, nnx.to_pure_dict(nnx.state(module)))
  want = {"q_proj": (D, H * C), "k_proj": (D, K * C), "v_proj": (D, K * C), "o_proj": (H * C, D)}
  want = {name: {"kernel": shape} for name, shape in want.items()}
  if qk_norm != "none":
    widths = (C, C) if qk_norm == "head" else (H * C, K * C)
    want |= {name: {"scale": (n,)} for name, n in zip(("q_norm", "k_norm"), widths, strict=True)}
  assert shapes == want
