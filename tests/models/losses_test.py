import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resjax.models import losses
from tests.helpers import jaxprs, xla

EPS = np.finfo(np.float32).eps
FIELDS = ("nats", "z", "tokens", "bytes", "correct")
cross_entropy = jax.jit(losses.cross_entropy, static_argnames=("chunk_size", "by_row"))


def example(rows=(3,), tokens=17, width=24, vocab=257, seed=0):
  """hidden, head, targets, weights: logits of unit scale, about a fifth of the weights 0."""
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=(*rows, tokens, width)).astype(np.float32)
  head = (rng.normal(size=(vocab, width)) / np.sqrt(width)).astype(np.float32)
  targets = rng.integers(0, vocab, size=(*rows, tokens)).astype(np.int32)
  weights = rng.uniform(size=(*rows, tokens)).astype(np.float32)
  weights *= rng.uniform(size=weights.shape) > 0.2
  return hidden, head, targets, weights


def reference(hidden, head, targets, weights, z_loss=0.0, softcap=0.0):
  """(nats + z_loss · z) / tokens from all logits at one time, by optax."""
  logits = jnp.einsum("...td,vd->...tv", hidden, head)
  if softcap:
    logits = softcap * jnp.tanh(logits / softcap)
  ce = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  z = jax.nn.logsumexp(logits, axis=-1) ** 2
  return jnp.sum(weights * (ce + z_loss * z)) / jnp.sum(weights)


def chunked(hidden, head, targets, weights, z_loss=0.0, **kwargs):
  sums = losses.cross_entropy(hidden, head, targets, weights, **kwargs)
  return (sums.nats + z_loss * sums.z) / sums.tokens


def assert_near(got, want, length, eps=EPS):
  """Rounding of a sum of `length` terms grows like its root, relative to the largest result."""
  atol = 2 * eps * np.sqrt(length) * np.abs(np.asarray(want)).max()
  np.testing.assert_allclose(got, want, rtol=0, atol=atol)


@pytest.mark.parametrize("vocab", [1, 257, 32000, 50257])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_value_and_gradients_are_those_of_optax(vocab, softcap):
  args = example(vocab=vocab)
  kwargs = {"z_loss": 1e-2, "softcap": softcap}
  want, wants = jax.jit(jax.value_and_grad(functools.partial(reference, **kwargs), (0, 1)))(*args)
  f = functools.partial(chunked, chunk_size=12, **kwargs)
  got, gots = jax.jit(jax.value_and_grad(f, (0, 1)))(*args)
  np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6 if vocab == 1 else 0)
  assert_near(gots[0], wants[0], vocab)
  assert_near(gots[1], wants[1], args[2].size * args[0].shape[-1])


def test_sums_against_float64():
  hidden, head, targets, weights = example(rows=(2, 3), vocab=100)
  got = cross_entropy(hidden, head, targets, weights, chunk_size=12)
  w = np.asarray(weights, np.float64)
  logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
  lse = np.log(np.exp(logits).sum(-1))
  picked = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
  want = {
    "nats": (w * (lse - picked)).sum(),
    "z": (w * lse**2).sum(),
    "tokens": w.sum(),
    "bytes": 0,  # nobody has counted them
    "correct": w[logits.argmax(-1) == targets].sum(),
  }
  for name in FIELDS:
    assert getattr(got, name).dtype == jnp.float32
    np.testing.assert_allclose(getattr(got, name), want[name], rtol=1e-6, err_msg=name)


def test_correct_counts_top_1_hits():
  head = np.eye(4, dtype=np.float32)
  hidden = 5 * head[None]
  targets, weights = np.array([[0, 1, 0, 3]]), np.array([[1.0, 0.5, 1.0, 0.0]])
  sums = cross_entropy(hidden, head, targets, weights, chunk_size=2)
  assert (sums.correct, sums.tokens, sums.bytes) == (1.5, 2.5, 0.0)


@pytest.mark.parametrize(
  "seed", [pytest.param(seed, marks=pytest.mark.release if seed > 2 else ()) for seed in range(6)]
)
def test_chunk_size_does_not_matter(seed):
  rng = np.random.default_rng(seed)
  rows, tokens = (int(rng.integers(1, 5)),) * int(rng.integers(0, 3)), int(rng.integers(1, 20))
  args = example(rows, tokens, width=8, vocab=int(rng.integers(2, 70)), seed=seed)
  count = args[2].size
  f = jax.jit(
    jax.value_and_grad(functools.partial(chunked, z_loss=1e-2), (0, 1)),
    static_argnames="chunk_size",
  )
  want, wants = f(*args, chunk_size=count)
  for chunk_size in {1, int(rng.integers(1, count + 1)), count + 5}:
    got, gots = f(*args, chunk_size=chunk_size)
    np.testing.assert_allclose(got, want, rtol=4 * EPS * np.sqrt(count))
    assert_near(gots[0], wants[0], 70)
    assert_near(gots[1], wants[1], count)


def test_nats_and_z_by_hand():
  # Four equal logits a: CE = log 4, lse = a + log 4.
  hidden, head = np.full((1, 1, 1), 3.0, np.float32), np.ones((4, 1), np.float32)
  sums = cross_entropy(hidden, head, np.array([[2]]), np.ones((1, 1)), chunk_size=1)
  np.testing.assert_allclose(sums.nats, np.log(4.0), rtol=4 * EPS)
  np.testing.assert_allclose(sums.z, (3.0 + np.log(4.0)) ** 2, rtol=4 * EPS)


def test_targets_without_weight_are_ignored_and_wrong_ones_are_not():
  hidden, head, targets, weights = example()
  weights[0, :2] = 0.0, 1.0
  ignored, wrong = targets.copy(), targets.copy()
  ignored[0, 0], wrong[0, 1] = -1, head.shape[0]
  f = functools.partial(cross_entropy, hidden, head, chunk_size=7)
  assert f(ignored, weights) == f(targets, weights)
  assert np.isnan(f(wrong, weights).nats)
  assert f(targets, 0 * weights) == losses.LossSums.zeros()


def test_sums_add_over_microbatches():
  hidden, head, targets, weights = example(rows=(4,))
  f = functools.partial(cross_entropy, chunk_size=9)
  parts = [f(hidden[i : i + 2], head, targets[i : i + 2], weights[i : i + 2]) for i in (0, 2)]
  total, want = sum(parts, losses.LossSums.zeros()), f(hidden, head, targets, weights)
  for name in FIELDS:
    np.testing.assert_allclose(getattr(total, name), getattr(want, name), rtol=1e-6)


def test_bfloat16_products_keep_an_fp32_head_gradient():
  hidden, head, targets, weights = example(rows=(8,), tokens=64)
  hidden, head = hidden.astype(jnp.bfloat16), head.astype(jnp.bfloat16)
  wide = (hidden.astype(np.float32), head.astype(np.float32), targets, weights)
  want = np.asarray(jax.jit(jax.grad(reference, 1))(*wide))
  one, many = (
    np.asarray(jax.jit(jax.grad(functools.partial(chunked, chunk_size=c), 1))(hidden, *wide[1:]))
    for c in (512, 8)
  )
  norm = np.linalg.norm(want)
  # One rounding of the logits' gradient to bfloat16, whatever the number of chunks.
  assert np.linalg.norm(many - want) / norm < jnp.finfo(jnp.bfloat16).eps
  assert np.linalg.norm(many - one) / norm < EPS * np.sqrt(512)


def test_all_logits_never_exist():
  hidden, head, targets, weights = example(rows=(4,), tokens=64, width=8, vocab=300)

  def largest(f):
    traced = jax.make_jaxpr(jax.grad(f, (0, 1)))(hidden, head, targets, weights)
    return max(v.aval.size for e in jaxprs.equations(traced.jaxpr) for v in e.outvars)

  assert largest(reference) == 4 * 64 * 300
  assert largest(functools.partial(chunked, chunk_size=32)) == 4 * 8 * 300


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"head": np.zeros((5, 3))}, "head must be"),
    ({"targets": np.zeros((3, 16), np.int32)}, "targets must have the shape"),
    ({"weights": np.zeros((3,))}, "weights must have the shape"),
    ({"chunk_size": 0}, r"config\.train\.loss_chunk"),
    ({"softcap": -1.0}, "softcap must be"),
  ],
)
def test_bad_input(change, message):
  given = dict(zip(("hidden", "head", "targets", "weights"), example(), strict=True))
  with pytest.raises(ValueError, match=message):
    losses.cross_entropy(**{**given, "chunk_size": 8, **change})


SHARDED = """
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from resjax.models import losses

B, T, D, V = 16, 64, 24, 998
mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "sequence", "tensor"))
rng = np.random.default_rng(0)
host = (
  rng.normal(size=(B, T, D)).astype(np.float32),
  rng.normal(size=(V, D)).astype(np.float32),
  rng.integers(0, V, (B, T)).astype(np.int32),
  rng.uniform(size=(B, T)).astype(np.float32),
)

def mean(sums):
  return (sums.nats + 1e-3 * sums.z) / sums.tokens

def auto(*args):
  return mean(losses.cross_entropy(*args, chunk_size=128))

def manual(*args):
  sums = losses.sharded_cross_entropy(
    *args, mesh=mesh, spec=P("data", "sequence"), chunk_size=32)
  return mean(sums)

def run(f, head_spec):
  specs = (P("data", "sequence", None), head_spec, P("data", "sequence"), P("data", "sequence"))
  shardings = [NamedSharding(mesh, s) for s in specs]
  out = (NamedSharding(mesh, P()), tuple(shardings[:2]))
  args = [jax.device_put(a, s) for a, s in zip(host, shardings)]
  program = jax.jit(jax.value_and_grad(f, (0, 1)), out_shardings=out).lower(*args).compile()
  return program.as_text(), program(*args)

want, wants = jax.value_and_grad(auto, (0, 1))(*map(jnp.asarray, host))
for f in (auto, manual):
  for head_spec in (P(), P("tensor", None)):
    text, (got, gots) = run(f, head_spec)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for a, b in zip(gots, wants):
      np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(abs(b).max()))
    for line in text.splitlines():  # what moves are sums over parts of V alone
      if re.search(r" (all-gather|all-to-all|collective-permute)[(]", line):
        shape = line.split(" = ")[1].split("{")[0]
        assert not re.search(r"\\b(24|499|998)\\b", shape), (f.__name__, head_spec, line)
    if f is manual:
      reductions = re.findall(r"^.*f32\\[(?:998|499),24\\]\\S* all-reduce.*$", text, re.M)
      entry = text[text.index("ENTRY"):]
      assert len(reductions) == 1 and reductions[0] in entry, reductions
print("checked")
"""


def test_shards_keep_their_tokens_and_reduce_the_head_gradient_once():
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.devices(8)}
  command = [sys.executable, "-c", SHARDED]
  done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
  assert done.stdout == "checked\n", done.stderr[-3000:]


def test_sharded_without_sharded_axes_is_the_plain_one():
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
  args = example()
  for spec in (jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("data")):
    sums = functools.partial(losses.sharded_cross_entropy, mesh=mesh, spec=spec, chunk_size=12)
    assert jax.jit(sums)(*args) == cross_entropy(*args, chunk_size=12)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("axes", [("data", "sequence"), ("data",), (None, "sequence")])
def test_sums_of_devices_are_the_sum_of_the_whole(axes, by_row):
  mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "sequence"))
  args = example(rows=(4,), tokens=16)
  options = {"chunk_size": 12, "by_row": by_row}
  spec = jax.sharding.PartitionSpec(*axes)
  sums = functools.partial(losses.sharded_cross_entropy, mesh=mesh, spec=spec, **options)
  got, want = jax.jit(sums)(*args), cross_entropy(*args, **options)
  for field in FIELDS:
    np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=1e-6)


def test_sums_by_row_are_those_of_the_rows_alone():
  args = example(rows=(2, 3))
  found = cross_entropy(*args, chunk_size=12, by_row=True)
  hidden, head, targets, weights = args
  for row in np.ndindex(2, 3):
    one = cross_entropy(hidden[row], head, targets[row], weights[row], chunk_size=12)
    for field in FIELDS:
      value = getattr(found, field)
      assert value.shape == (2, 3)
      np.testing.assert_allclose(value[row], getattr(one, field), rtol=1e-6, err_msg=field)


def test_float64_and_second_derivatives():
  with jax.enable_x64(True):
    hidden, head = jnp.asarray(_normal(0, 2, 3, 4), jnp.float64), jnp.asarray(_normal(1, 5, 4))
    targets, weights = jnp.asarray([[0, 1, 2], [3, 4, 0]]), jnp.ones((2, 3))

    def loss(x, function):
      return jnp.exp(function(x) / 6)

    def ours(x):
      return losses.cross_entropy(x, head, targets, weights, chunk_size=2).nats

    def plain(x):
      logits = jnp.einsum("btd,vd->btv", x, head, preferred_element_type=jnp.float32)
      chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
      return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen)

    def second(function):
      def slope(x):
        return jnp.sum(jax.grad(loss)(x, function) ** 2)

      return jax.grad(slope)(hidden)

    np.testing.assert_allclose(loss(hidden, ours), loss(hidden, plain), rtol=1e-6)
    np.testing.assert_allclose(second(ours), second(plain), rtol=1e-5)


def _normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)
