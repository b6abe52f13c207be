"""A decoder with float64 activations is that of plain NumPy in float64."""

import jax
import numpy as np
from flax import nnx

from tests.helpers import decoders


def rms_norm(x, scale, eps):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * scale


def rotated(x, theta):
  half = x.shape[-1] // 2
  angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
  turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
  return np.concatenate([turned.real, turned.imag], axis=-1)


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def by_numpy(config, p, tokens):
  """Logits [T, V] of one row, of a Llama with plain residual adds."""
  x = p["embed"]["embedding"][tokens]
  for i in range(config.num_layers):
    layer = jax.tree.map(lambda leaf, i=i: leaf[i], p["layers"])
    n = rms_norm(x, layer["norms"]["attention"]["x"]["scale"], config.norm_eps)
    heads = (len(tokens), -1, config.head_dim)
    q, k, v = ((n @ layer["attention"][f"{name}_proj"]["kernel"]).reshape(heads) for name in "qkv")
    q, k = rotated(q, config.rope_theta), rotated(k, config.rope_theta)
    k, v = (np.repeat(a, config.num_heads // config.num_kv_heads, axis=1) for a in (k, v))
    scores = np.einsum("thc,shc->hts", q, k) / np.sqrt(config.head_dim)
    weights = softmax(np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf))
    out = np.einsum("hts,shc->thc", weights, v).reshape(len(tokens), -1)
    x = x + out @ layer["attention"]["o_proj"]["kernel"]
    n = rms_norm(x, layer["norms"]["mlp"]["x"]["scale"], config.norm_eps)
    gate, up = (n @ layer["mlp"][name]["kernel"] for name in ("gate_proj", "up_proj"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ layer["mlp"]["down_proj"]["kernel"]
  x = rms_norm(x, p["final_norm"]["scale"], config.norm_eps)
  output = p["embed" if config.tied_embeddings else "output"]
  return x @ output["embedding"].T


def test_a_decoder_in_float64():
  with jax.enable_x64(True):
    config = decoders.config(dtype="float64", num_layers=2)
    model = decoders.drawn(config)
    parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
    tokens = np.asarray(decoders.tokens(config, batch=1))
    got = np.asarray(model.logits(model(tokens)))[0]
    assert got.dtype == np.float64
    want = by_numpy(config, parameters, tokens[0])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())
