"""Values mixed along the depth, by a gate or a softmax: numpy, decoding, state, refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.models.config import DepthValuesConfig, MupConfig, ShortSWAConfig, ValueGateConfig
from resjax.models.flops import forward_flops_per_token
from resjax.testing.compare import assert_close
from tests.helpers import decoders, reference, walks
from tests.models.decode_test import cached_and_whole

LENGTH = 7
GATED = {"value_residual": "gated"}
DEPTH = {"value_mixing": "depth", "num_layers": 5}
BOTH = GATED | DEPTH | {"value_gate": ValueGateConfig("tanh", 3)}
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 1]])
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]])


def softmax(z):
  e = np.exp(z - z.max(axis=-1, keepdims=True))
  return e / e.sum(axis=-1, keepdims=True)


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


GATES = {
  "relu": lambda z: np.where(z > 0, z, 0),
  "sigmoid": sigmoid,
  "tanh": np.tanh,
  "identity": lambda z: z,
  "softmax": lambda z: z.shape[-1] * softmax(z),
  "softmax_sigmoid": lambda z: z.shape[-1] * softmax(z) * sigmoid(z),
}


def turned(x, theta):
  """RoPE on pairs of values of a head, as complex numbers."""
  half = x.shape[-1] // 2
  angles = POSITIONS[:, :, None, None] * theta ** (-np.arange(half) / half)
  pairs = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
  return np.concatenate([pairs.real, pairs.imag], axis=-1)


def depth_mix(q, k, v, sources, share):
  """V' of one layer, one token and one key head after another."""
  out = np.zeros_like(v)
  group = q.shape[2] // k.shape[2]
  for b, t, h in np.ndindex(*v.shape[:3]):
    query = q[b, t, h * group : (h + 1) * group].mean(axis=0)
    keys = [*(key[b, t, h] for key, _ in sources), k[b, t, h]]
    values = [*(value[b, t, h] for _, value in sources), v[b, t, h]]
    weights = softmax(np.array([query @ key for key in keys]) / np.sqrt(v.shape[-1]))
    mixed = sum(w * value for w, value in zip(weights, values, strict=True))
    out[b, t, h] = v[b, t, h] + share * (mixed - v[b, t, h])
  return out


def in_numpy(p, config, tokens, rotated_keys=True):
  """Final hidden states of a llama-style decoder with standard residuals."""

  def rms(x, gain):
    return reference.rms(x, config.norm_eps) * gain["scale"]

  layers, gate, mixes = config.num_layers, config.value_gate, config.depth_values
  gated = config.value_residual == "gated"
  stride, x = mixes.stride or layers // 2, p["embed"]["embedding"][tokens]
  first, kept = None, []
  for layer in range(layers):
    row = jax.tree.map(lambda a, i=layer: a[i], p["layers"])
    w, n = row["attention"], rms(x, row["norms"]["attention"]["x"])
    q, k, v = (
      (n @ w[f"{name}_proj"]["kernel"]).reshape(*tokens.shape, heads, -1)
      for name, heads in zip(
        "qkv", (config.num_heads, config.num_kv_heads, config.num_kv_heads), strict=True
      )
    )
    first = v if first is None else first
    if gated and layer >= 1 and layer >= layers - (gate.last_k or layers):
      maps = p["value_gate"]["kernel"]
      v = v + GATES[gate.gate](n @ maps[layer - layers + len(maps)])[..., None] * first
    plain = q, k
    q, k = turned(q, config.rope_theta), turned(k, config.rope_theta)
    if config.value_mixing == "depth":
      chosen = [j for j in range(layer) if j % stride == 0 or j >= layer - mixes.recent]
      share = p["value_share"][layer - 1] if mixes.zero_init and layer else 1
      query, key = (q, k) if rotated_keys else plain
      v = depth_mix(query, key, v, [kept[j] for j in chosen], share)
      kept.append((key, v))
    out = reference.causal_attention(
      q, k, v, SEGMENTS, config.windows[layer % len(config.windows)] or None
    )
    x = x + out.reshape(*tokens.shape, -1) @ w["o_proj"]["kernel"]
    n, w = rms(x, row["norms"]["mlp"]["x"]), row["mlp"]
    gates = n @ w["gate_proj"]["kernel"]
    x = x + gates * sigmoid(gates) * (n @ w["up_proj"]["kernel"]) @ w["down_proj"]["kernel"]
  return rms(x, p["final_norm"])


def example(**changes):
  config = decoders.config("llama", **changes)
  model = decoders.decoder(config)
  parameters = jax.tree.map(np.float64, nnx.to_pure_dict(nnx.state(model)))
  return config, model, parameters, np.asarray(decoders.tokens(config, length=LENGTH))


@jax.jit
def hidden(model, tokens):
  return model(tokens, SEGMENTS, POSITIONS)


CASES = [
  BOTH | {"windows": (3, 0)},
  GATED,
  *(GATED | {"num_layers": 2, "value_gate": ValueGateConfig(gate)} for gate in list(GATES)[1:]),
  DEPTH,
  DEPTH | {"depth_values": DepthValuesConfig(stride=3, recent=1, zero_init=True)},
  DEPTH | {"depth_values": DepthValuesConfig(stride=1), "num_kv_heads": 4, "depth": "loop"},
  DEPTH | {"depth_values": DepthValuesConfig(stride=9, recent=2), "remat": "full"},
]


@pytest.mark.parametrize(
  "changes", [CASES[0], *(pytest.param(case, marks=pytest.mark.release) for case in CASES[1:])]
)
def test_numpy(changes):
  config, model, parameters, tokens = example(**changes)
  want = in_numpy(parameters, config, tokens)
  assert_close(hidden(model, tokens), want, 2e-5)
  if config.value_mixing == "depth":  # query and key stand at one position
    assert_close(in_numpy(parameters, config, tokens, rotated_keys=False), want, 1e-12)


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.release)])
def test_gradients_of_a_scan_are_those_of_numpy(remat):
  changes = BOTH | {"depth_values": DepthValuesConfig(2, 1, True), "remat": remat}
  config, model, parameters, tokens = example(**changes)
  graphdef, state = nnx.split(model)
  d = np.random.default_rng(0).normal(size=(*tokens.shape, config.d_model))

  def total(state):
    return jnp.sum(nnx.merge(graphdef, state)(tokens, SEGMENTS, POSITIONS) * d)

  gradients = nnx.to_pure_dict(jax.jit(jax.grad(total))(state))
  for path, places in (
    (("layers", "attention", "v_proj", "kernel"), [(0, 0, 0), (2, 3, 5), (3, 15, 7)]),
    (("layers", "attention", "k_proj", "kernel"), [(0, 0, 0), (2, 3, 5), (3, 15, 7)]),
    (("layers", "attention", "q_proj", "kernel"), [(1, 0, 0), (4, 3, 5)]),
    (("value_gate", "kernel"), [(0, 3, 1), (2, 0, 0)]),
    (("value_share",), [(0,), (3,)]),
  ):
    got, array = (functools.reduce(dict.get, path, tree) for tree in (gradients, parameters))
    for place in places:
      values = []
      for step in (1e-5, -1e-5):
        array[place] += step
        values.append(np.sum(in_numpy(parameters, config, tokens) * d))
        array[place] -= step
      want = (values[0] - values[1]) / 2e-5
      np.testing.assert_allclose(got[place], want, rtol=2e-3, atol=1e-3)


@pytest.mark.release
@pytest.mark.parametrize("name", ["attn_res", "block_attn_res", "hyper_connections", "muddformer"])
def test_values_and_gradients_of_other_strategies_are_those_of_the_loop(name):
  changes = BOTH | {"depth_values": DepthValuesConfig(recent=1, zero_init=True)}
  config = decoders.config("llama", name, **changes)
  graphdef, state = nnx.split(decoders.decoder(config))
  tokens = decoders.tokens(config, length=LENGTH)

  def total(state, depth):
    model = nnx.merge(graphdef, state)
    model.config = dataclasses.replace(config, depth=depth)
    return jnp.mean(model.logits(model(tokens)) ** 2)

  scan, loop = (
    jax.jit(jax.value_and_grad(functools.partial(total, depth=depth)))(state)
    for depth in ("scan", "loop")
  )
  assert_close(scan, loop, 1e-5)


@walks.names(slow=("gate", "block_attn_res", "deep_delta", "mhc", "muddformer"))
def test_every_combinator_takes_both(name):
  config = decoders.config("llama", name, **BOTH)
  model = decoders.shapes(config)
  gradients = nnx.eval_shape(nnx.grad(lambda model: jnp.sum(model(decoders.tokens(config)))), model)
  assert jax.tree.structure(gradients) == jax.tree.structure(nnx.state(model, nnx.Param))


@pytest.mark.parametrize(
  "changes",
  [
    BOTH | {"short_swa": ShortSWAConfig(3), "depth_values": DepthValuesConfig(3, 1, True)},
    pytest.param(
      DEPTH | {"residual": "block_attn_res", "parallel": True}, marks=pytest.mark.release
    ),
    pytest.param(GATED | {"positions": "learned"}, marks=pytest.mark.release),
  ],
)
def test_decoding_with_a_cache_is_the_whole_row(changes):
  assert_close(*cached_and_whole(decoders.config("llama", **changes), (5, 1, 2, 1)), 2e-5)


@pytest.mark.parametrize("gate", ["tanh", "identity"])
def test_a_start_at_zero_is_the_decoder_without(gate):
  changes = BOTH | {"value_gate": ValueGateConfig(gate, 0, True)}
  config = decoders.config("llama", **changes, depth_values=DepthValuesConfig(zero_init=True))
  tokens = decoders.tokens(config, length=LENGTH)
  plain = decoders.decoder(decoders.config("llama", num_layers=5), random=False)
  fresh = decoders.decoder(config, random=False)
  np.testing.assert_array_equal(hidden(fresh, tokens), hidden(plain, tokens))
  graphdef, state = nnx.split(fresh)

  def total(state):
    return jnp.sum(nnx.merge(graphdef, state)(tokens) ** 3)

  gradients = nnx.to_pure_dict(jax.jit(jax.grad(total))(state))
  assert np.abs(gradients["value_gate"]["kernel"]).max(axis=(1, 2)).min() > 0
  assert np.abs(gradients["value_share"]).min() > 0


def test_a_constant_gate_is_the_residual_with_weights():
  config = decoders.config("llama", **GATED, value_gate=ValueGateConfig("sigmoid", 0, True))
  weighed = decoders.decoder(decoders.config("llama", value_residual="learned"), random=False)
  weighed.value_weights[...] = jnp.array([[1.0, 0.5]] * 2)
  tokens = decoders.tokens(config, length=LENGTH)
  gated = decoders.decoder(config, random=False)
  assert_close(hidden(gated, tokens), hidden(weighed, tokens), 1e-6)


def test_parameters_and_slots_by_hand():
  def made(**changes):
    return decoders.shapes(decoders.config("llama", num_layers=6, **changes))

  def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))

  plain, k, d = count(made()), 2, 16
  assert count(made(**GATED)) - plain == 5 * d * k
  assert count(made(**GATED, value_gate=ValueGateConfig(last_k=2))) - plain == 2 * d * k
  assert count(made(value_mixing="depth")) == plain
  share = DepthValuesConfig(zero_init=True)
  assert count(made(value_mixing="depth", depth_values=share)) - plain == 5
  assert made().config.value_sources == ((),) * 6

  def slots(stride, recent):
    options = DepthValuesConfig(stride, recent)
    model = made(value_mixing="depth", depth_values=options)
    assert model.config.value_sources[5] == tuple(
      j for j in range(5) if j % (stride or 3) == 0 or 5 - j <= recent
    )
    return model._values().empty_bank(2, 7).keys.shape

  assert slots(0, 0) == (2, 2, 7, 2, 4)  # layers 0 and 3
  assert slots(1, 0) == (5, 2, 7, 2, 4)
  assert slots(9, 1) == (2, 2, 7, 2, 4)  # layer 0 and the one before
  assert slots(4, 2) == (3, 2, 7, 2, 4)  # at layer 4: 0, 2 and 3; at layer 5: 0, 3 and 4


def test_flops_by_hand():
  made = decoders.shapes(decoders.config("llama", num_layers=6)).combinator

  def flops(**changes):
    return forward_flops_per_token(decoders.config("llama", num_layers=6, **changes), made, 32)

  d, kv, plain = 16, 2, flops()
  assert flops(**GATED) - plain == 5 * (2 * d * kv + 2 * kv * 4)
  sources = [2, 2, 2, 3, 3]  # of layers 1 to 5, themselves included
  assert flops(value_mixing="depth") - plain == sum(sources) * 4 * kv * 4


@pytest.mark.parametrize("changes", [GATED, {"value_mixing": "depth"}])
def test_one_layer_has_its_own_values(changes):
  tokens = decoders.tokens(decoders.config(), length=LENGTH)
  plain = decoders.decoder(decoders.config(num_layers=1))
  mixed = decoders.decoder(decoders.config(num_layers=1, **changes))
  np.testing.assert_array_equal(hidden(mixed, tokens), hidden(plain, tokens))


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"value_mixing": "time"}, "value_mixing='time' must be one of none, depth"),
    (
      {"value_gate": ValueGateConfig("elu")},
      "value_gate.gate='elu' must be one of relu, sigmoid, tanh, identity, softmax, softmax_sig",
    ),
    ({"value_gate": ValueGateConfig(last_k=-1)}, "value_gate.last_k=-1 must be 0 or positive"),
    (
      {"value_gate": ValueGateConfig(zero_init=True)},
      "value_gate.zero_init=True must be False with gate='relu', which would never open",
    ),
    ({"depth_values": DepthValuesConfig(-2)}, "depth_values.stride=-2 must be 0 or positive"),
    ({"depth_values": DepthValuesConfig(0, -1)}, "depth_values.recent=-1 must be 0 or positive"),
    (
      GATED | {"mup": MupConfig(8)},
      "value_residual='gated' has no rule for widths; set config.model.mup.base_width=8 to 0",
    ),
  ],
)
def test_options_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=f"config.model.{message}"):
    decoders.config(**changes)
