"""A mixture of experts is a float64 loop over tokens, in values and gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.nn import PRODUCT, MoE, Router, expert_products
from tests.helpers import jaxprs, layouts

B, T, D, E, F = 8, 6, 8, 8, 16
BALANCE, Z = 0.7, 0.3  # factors of the losses of the router


@dataclasses.dataclass(frozen=True)
class Case:
  """A mixture: its router, and what it has besides."""

  router: Router
  name: str = "swiglu"
  shared_dim: int = 0
  selection_bias: bool = False
  platform: str = "cpu"
  collapsed: bool = False  # all tokens choose the same experts


CASES = {
  "mixtral": Case(Router(2)),
  "ragged": Case(Router(2), platform="tpu"),
  "olmoe": Case(Router(3, normalised=False), platform="tpu"),
  "deepseek": Case(Router(3, "sigmoid", scale=2.5), shared_dim=6, selection_bias=True),
  "switch": Case(Router(1, normalised=False), name="gelu"),
  "all to one": Case(Router(1), collapsed=True),
  "gpu": Case(Router(3, normalised=False), platform="gpu"),
  "all to one, gpu": Case(Router(1), platform="gpu", collapsed=True),
  "all to two, ragged": Case(Router(2, "sigmoid"), platform="tpu", collapsed=True),
  "all experts": Case(Router(E), name="geglu"),
}


def made(case, layout=None, dtype="float64"):
  moe = MoE(
    case.name, D, E, F, shared_dim=case.shared_dim, router=case.router,
    selection_bias=case.selection_bias, std=0.3, out_std=0.3, dtype=dtype,
    layout=layout or Layout(), rngs=nnx.Rngs(0),
  )  # fmt: skip
  rng, (graphdef, state) = np.random.default_rng(0), nnx.split(moe)
  params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) * 0.4, nnx.to_pure_dict(state))
  if case.collapsed:  # the inputs are positive
    params["router"]["kernel"][:, 2:4] += 5
  nnx.replace_by_pure_dict(state, params)
  return graphdef, state


def inputs():
  rng = np.random.default_rng(1)
  x, g = np.abs(rng.normal(size=(B, T, D))), rng.normal(size=(B, T, D))
  return x, g, np.arange(T) < np.linspace(2, T, B)[:, None]


def objective(graphdef, state, x, g, counted):
  out, routing = nnx.merge(graphdef, state)(x, counted)
  return jnp.sum(out * g) + BALANCE * routing.balance + Z * routing.z, (out, routing)


def act(name, h):
  """The activation and its derivative."""
  if name == "swiglu":
    s = 1 / (1 + np.exp(-h))
    return h * s, s * (1 + h * (1 - s))
  inner = np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)
  slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * h**2)
  th = np.tanh(inner)
  return 0.5 * h * (1 + th), 0.5 * (1 + th) + 0.5 * h * (1 - th**2) * slope


def mlp(name, maps, x, g, weight):
  """Output of an MLP for one token, and gradients of weight · output · g."""
  gate, up, down = maps.get("gate_proj"), maps["up_proj"], maps["down_proj"]
  u = x @ up
  a, slope = act(name, u if gate is None else x @ gate)
  inner = a if gate is None else a * u
  d_inner = down @ (weight * g)
  d = {"down_proj": np.outer(inner, weight * g)}
  if gate is None:
    d["up_proj"], d_x = np.outer(x, d_inner * slope), up @ (d_inner * slope)
  else:
    d_gate, d_up = d_inner * u * slope, d_inner * a
    d |= {"gate_proj": np.outer(x, d_gate), "up_proj": np.outer(x, d_up)}
    d_x = gate @ d_gate + up @ d_up
  return inner @ down, d, d_x


def oracle(case, params, x, g, counted):
  """Outputs, choices, losses and gradients, token by token."""
  w, router, k = params["router"]["kernel"], case.router, case.router.top_k
  bias = params.get("selection_bias", np.zeros(E))
  maps = {name: params[name]["kernel"] for name in ("gate_proj", "up_proj", "down_proj")
          if name in params}  # fmt: skip
  shared = {name: leaf["kernel"] for name, leaf in params.get("shared", {}).items()}
  d = jax.tree.map(np.zeros_like, params)
  out, d_x, counts, n = np.zeros_like(x), np.zeros_like(x), np.zeros(E), counted.sum()
  logits = x @ w
  soft = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  scores = soft if router.score == "softmax" else 1 / (1 + np.exp(-logits))
  chosen = np.argsort(-(scores + bias), axis=-1, kind="stable")[..., :k]
  p = scores / scores.sum(-1, keepdims=True)
  for at in np.argwhere(counted):
    counts[chosen[tuple(at)]] += 1
  share = E / (k * n) * counts
  balance = z = entropy = 0.0
  for at in map(tuple, np.argwhere(np.ones((B, T)))):
    s, picks, t = scores[at], chosen[at], x[at]
    total = s[picks].sum() if router.normalised else 1.0
    d_s, d_w = np.zeros(E), np.zeros(k)
    for i, e in enumerate(picks):
      weight = router.scale * s[e] / total
      made, d_maps, d_t = mlp(case.name, {m: a[e] for m, a in maps.items()}, t, g[at], weight)
      out[at] += weight * made
      d_x[at] += d_t
      d_w[i] = router.scale * made @ g[at]
      for m, a in d_maps.items():
        d[m]["kernel"][e] += a
    mean = (d_w * s[picks]).sum() / total if router.normalised else 0.0
    d_s[picks] = (d_w - mean) / total
    if shared:
      made, d_maps, d_t = mlp(case.name, shared, t, g[at], 1.0)
      out[at] += made
      d_x[at] += d_t
      for m, a in d_maps.items():
        d["shared"][m]["kernel"] += a
    lse, d_l = np.log(np.exp(logits[at]).sum()), np.zeros(E)
    if counted[at]:
      balance, z = balance + share @ p[at], z + lse**2
      entropy -= p[at] @ np.log(p[at])
      d_p = BALANCE * share
      d_s += (d_p - d_p @ p[at]) / s.sum()
      d_l = Z * 2 * lse * soft[at]
    d_l = d_l + (s * (d_s - s @ d_s) if router.score == "softmax" else s * (1 - s) * d_s)
    d["router"]["kernel"] += np.outer(t, d_l)
    d_x[at] += w @ d_l
  return (out, (counts, entropy, balance, z)), (d, d_x)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_a_loop_over_tokens(name, monkeypatch):
  case = CASES[name]
  monkeypatch.setattr(Layout, "platform", case.platform)
  with jax.enable_x64(True):
    graphdef, state = made(case)
    x, g, counted = inputs()
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(state))
    run = jax.jit(jax.grad(functools.partial(objective, graphdef), (0, 1), has_aux=True))
    (d_state, d_x), found = run(state, x, g, counted)
    want, (d, want_x) = oracle(case, params, x, g, counted)
    got = (found[0], tuple(found[1])), (nnx.to_pure_dict(d_state), d_x)
  if case.collapsed:  # no token was dropped
    assert sorted(want[1][0])[-case.router.top_k :] == [counted.sum()] * case.router.top_k
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves((want, (d, want_x))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kept", "products"), [((), 12), ((PRODUCT,), 9)], ids=["full", "dots"])
def test_recomputation_that_keeps_products_multiplies_no_expert_again(kept, products, monkeypatch):
  monkeypatch.setattr(Layout, "platform", "tpu")
  graphdef, state = made(CASES["mixtral"], dtype="float32")

  @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names(*kept))
  def squared(*arguments):  # which reads the output again, as combinators do
    return jnp.square(objective(graphdef, *arguments)[1][0]).sum()

  x, g, counted = inputs()
  text = str(jax.make_jaxpr(jax.grad(squared))(state, np.float32(x), np.float32(g), counted))
  assert text.count(" ragged_dot_general[") + text.count(" while[") == products


def test_routers_multiply_without_rounding():
  graphdef, state = made(CASES["mixtral"], dtype="float32")
  run = jax.jit(jax.grad(functools.partial(objective, graphdef), (0, 1), has_aux=True))
  text = run.lower(state, *map(np.float32, inputs()[:2]), inputs()[2]).as_text()
  assert text.count("precision = [HIGHEST, HIGHEST]") == 3  # and the two of the reverse pass
  assert "batching_dims = [0] x [0]" not in text  # the gradient of the weights is a sum


def test_several_models_at_once_are_each_alone():
  graphdef, one = made(CASES["deepseek"], dtype="float32")
  two = made(dataclasses.replace(CASES["deepseek"], collapsed=True), dtype="float32")[1]
  x, g, counted = inputs()
  arguments = np.float32(x), np.float32(g), counted
  run = jax.grad(functools.partial(objective, graphdef), (0, 1), has_aux=True)
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two)
  together = jax.vmap(lambda state: run(state, *arguments))
  # Their loops have one end, so that no step copies what the others have written.
  traced = jaxprs.equations(jax.make_jaxpr(together)(stacked).jaxpr)
  ends = [e.params["cond_jaxpr"].out_avals for e in traced if e.primitive.name == "while"]
  assert ends and all(end.shape == () for (end,) in ends)
  found = jax.jit(together)(stacked)
  for number, state in enumerate((one, two)):
    got = jax.tree.map(lambda leaf, n=number: leaf[n], found)
    for a, b in zip(*map(jax.tree.leaves, (got, jax.jit(run)(state, *arguments))), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_tokens_are_counted_and_not_sorted():  # a sort takes long to compile for TPUs
  own = jnp.array([[0, 2], [3, 0], [3, 3]])  # its grouping is compared with a loop above
  text = str(jax.make_jaxpr(lambda own: expert_products._groups(own, 4, "tpu"))(own))
  assert " cumsum[" in text and " sort[" not in text


def test_a_device_goes_through_no_tile_of_experts_that_it_has_not():
  own = jnp.array([[0, 2], [3, 0], [3, 3]])  # 2 and 3 are others'
  found = expert_products._groups(jnp.minimum(own, 2), 2, "cpu")
  assert found.filled == 1 and len(found.tiles) == 2


MESHES = {
  "dp": {"data": 2, "expert": 4},
  "fsdp": {"fsdp": 2, "data": 1, "expert": 4},
  "fsdp_tp": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
  "long_context": {"data": 1, "expert": 2, "tensor": 2, "sequence": 2},
}


@functools.cache
def on_one_device(name):
  graphdef, state = made(CASES[name], dtype="float32")
  run = jax.grad(functools.partial(objective, graphdef), (0, 1), has_aux=True)
  return jax.device_get(jax.jit(run)(state, *map(np.float32, inputs()[:2]), inputs()[2]))


@pytest.mark.parametrize("rules", MESHES)
@pytest.mark.parametrize("name", ["deepseek", "all to two, ragged"])
def test_experts_split_over_eight_devices_are_those_of_one(name, rules, monkeypatch):
  monkeypatch.setattr(Layout, "platform", CASES[name].platform)
  layout = layouts.layout(rules, **MESHES[rules])
  graphdef, state = made(CASES[name], layout, "float32")
  places = jax.tree.map(
    lambda v: layout.sharding(*v.get_metadata().get("axes", [None] * v.ndim)), state,
    is_leaf=lambda v: isinstance(v, nnx.Variable),
  )  # fmt: skip
  state = jax.device_put(state, places)
  x, g, counted = inputs()
  x, g = (jax.device_put(np.float32(a), layout.sharding("batch", "tokens", None)) for a in (x, g))
  run = jax.jit(jax.grad(functools.partial(objective, graphdef), (0, 1), has_aux=True))
  got, want = run(state, x, g, counted), on_one_device(name)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, atol=5e-7 * np.abs(b).max())
