"""Deep Delta Learning: the algebra of its update, segments, cached decoding, initial values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from resjax.combinators import TokenContext
from resjax.combinators.systems.deep_delta import delta_update
from resjax.models.decoder import Decoder
from resjax.testing import toy
from resjax.testing.compare import assert_close
from tests.helpers import decoders
from tests.helpers.systems.deep_delta import CHANNEL, PLAIN_WIDTH, TOKEN, deep_delta

B, T, D, L = 2, 7, toy.D, 2
LAYERS = toy.layers(L)
X = np.random.default_rng(6).normal(size=(B, T, D)).astype(np.float32)
EXPANDED = {"embedding_expansion": True}
MIXING = (TOKEN | {"kernel_size": 3}, TOKEN | EXPANDED, CHANNEL | EXPANDED)
mixing = pytest.mark.parametrize("options", MIXING, ids=str)


def build(options, **kwargs):
  return toy.build("deep_delta", {"beta_init": 0.1, **options}, num_layers=L, **kwargs)


def run_layers(made, state):
  """The state after all layers, branches without token mixing."""
  for layer in range(L):
    row = jax.tree.map(lambda leaf, i=layer: leaf[i], LAYERS)
    state = one_layer(made, state, layer, row)
  return state


def one_layer(made, state, layer, row):
  for site in made.sites:
    views, tape = made.read(state, layer, site)
    normed, out = toy.token_local_branch(row, site, views)
    state = made.write(state, layer, site, out, normed=normed, tape=tape)
  return state


def forward(made, x, segment_ids=None):
  return np.asarray(chunk(run_layers, *nnx.split(made), x, segment_ids)[0])


@functools.partial(jax.jit, static_argnums=(0, 1))
def chunk(run_layers, graphdef, state, x, segment_ids, cache=None):
  """Output of some tokens, in one program, and the cache that they leave."""
  made = nnx.merge(graphdef, state)
  state = run_layers(made, made.init(x, TokenContext(segment_ids, cache)))
  return made.final(state), made.next_cache(state)


@jax.jit
def update(beta, value, x, out):
  shape = (*out.shape[:-1], 1)
  return delta_update(x, out, jnp.full(shape, beta), value, 1e-6)


@pytest.fixture
def given():
  """X [R, B, D], o [B, D], v [R, B, 1]."""
  draw = np.random.default_rng(7).normal
  return tuple(draw(size=shape).astype(np.float32) for shape in ((3, 4, D), (4, D), (3, 4, 1)))


def test_beta_zero_keeps_the_state(given):
  x, out, value = given
  np.testing.assert_array_equal(update(0.0, value, x, out), x)


def test_beta_one_overwrites_what_the_state_holds_along_the_direction(given):
  x, out, value = given
  k = out / np.linalg.norm(out, axis=-1, keepdims=True)
  new = np.asarray(update(1.0, value, x, out))
  assert_close(np.sum(k * new, axis=-1, keepdims=True), value, 1e-6)
  across = x - np.sum(k * x, axis=-1, keepdims=True) * k
  assert_close(new - value * k, across, 1e-6)


def test_beta_two_without_value_reflects(given):
  x, out, _ = given
  new = np.asarray(update(2.0, 0.0, x, out))
  assert_close(np.linalg.norm(new, axis=-1), np.linalg.norm(x, axis=-1), 1e-6)
  assert_close(update(2.0, 0.0, new, out), x, 1e-6)
  assert np.abs(new - x).max() > 0.1


def test_only_the_direction_of_the_output_matters(given):
  x, out, value = given
  assert_close(update(0.7, value, x, 100 * out), update(0.7, value, x, out), 1e-6)
  y, vjp = jax.vjp(lambda o: update(0.7, value, x, o), np.zeros_like(out))
  np.testing.assert_array_equal(y, x)
  assert np.isfinite(np.asarray(vjp(np.ones_like(x))[0])).all()


@pytest.mark.parametrize("options", [{}, TOKEN, PLAIN_WIDTH | {"value": "sigmoid"}], ids=str)
def test_around_beta_one_in_float64(options):
  """The operating point of the paper, where float32 is too coarse for a chain of equations."""
  options = {**options, "beta_init": 1.0}
  with jax.enable_x64(True):
    made = build(options)
    layers, x = toy.layers(L, dtype=float), X.astype(float)
    got = np.asarray(toy.compiled_by_hand(made, layers, x))
  want = deep_delta(toy.parameters(made), layers, x, toy.SITES, **options)
  assert_close(got, want, 1e-11)


SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 3], [0, 0, 4, 4, 4, 4, 0]], np.int32)


@mixing
def test_taps_stay_within_segments(options):
  made = build(options)
  y = forward(made, X, SEGMENTS)
  for row, start, stop in ((0, 0, 3), (0, 3, 5), (0, 5, 7), (1, 2, 6)):
    alone = forward(made, X[row : row + 1, start:stop])
    assert_close(y[row : row + 1, start:stop], alone, 1e-5)
  assert np.abs(y - forward(made, X))[0, 3:].max() > 1e-2


@mixing
@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.slow
def test_segments_in_a_scan(options, remat):
  made, tokens = build(options), TokenContext(jnp.asarray(SEGMENTS))
  loop = functools.partial(toy.run, branch=toy.token_local_branch, tokens=tokens, unroll=True)
  scan = functools.partial(toy.run, branch=toy.token_local_branch, tokens=tokens, remat=remat)
  want = toy.jitted(loop, made, LAYERS, X)
  assert_close(want[0], forward(made, X, SEGMENTS), 1e-5)
  assert_close(toy.jitted(scan, made, LAYERS, X), want, 1e-5)


def by_chunks(made, run_layers, sizes, segment_ids):
  """Outputs of tokens that come in chunks, each with the cache that the ones before left."""
  cache, outputs, start = made.decode_cache(B, jnp.float32), [], 0
  for size in sizes:
    place = slice(start, start + size)
    ids = None if segment_ids is None else segment_ids[:, place]
    output, after = chunk(run_layers, *nnx.split(made), X[:, place], ids, cache)
    outputs.append(output)
    assert jax.tree.map(kind, after) == jax.tree.map(kind, cache)
    cache, start = after, start + size
  return np.concatenate(outputs, axis=1)


def kind(leaf):
  return leaf.shape, leaf.dtype


# In a cache padding comes last in a call, and what is returned for it has no meaning.
IN_CACHE = np.array([[1, 1, 1, 2, 2, 3, 3], [4, 4, 4, 4, 0, 0, 0]], np.int32)


@pytest.mark.parametrize(
  "sizes, segment_ids", [((1,) * T, None), ((3, 3, 1), IN_CACHE), ((4, 1, 1, 1), IN_CACHE)]
)
@pytest.mark.parametrize("options", [PLAIN_WIDTH, CHANNEL, *MIXING], ids=str)
@pytest.mark.slow
def test_cached_evaluation_is_the_full_one(options, sizes, segment_ids):
  made = build(options)
  got = by_chunks(made, run_layers, sizes, segment_ids)
  real = np.ones((B, T), bool) if segment_ids is None else segment_ids > 0
  assert_close(got[real], forward(made, X, segment_ids)[real], 1e-5)


@mixing
def test_cached_evaluation_in_a_scan(options):
  """The layer is traced, and the cache is part of the carry."""
  made = build(options)

  def scanned(made, state):
    def body(state, indexed):
      return one_layer(made, state, *indexed), None

    return lax.scan(body, state, (jnp.arange(L), jax.tree.map(jnp.asarray, LAYERS)))[0]

  got = by_chunks(made, scanned, (3, 1, 1, 1, 1), IN_CACHE)
  real = IN_CACHE > 0
  assert_close(got[real], forward(made, X, IN_CACHE)[real], 1e-5)


def test_the_cache_holds_what_its_options_need():
  shapes = {
    str(options): jax.tree.map(jnp.shape, build(options).decode_cache(5, jnp.bfloat16))
    for options in (PLAIN_WIDTH, CHANNEL, *MIXING)
  }
  plain, channel, token, both, embeddings = shapes.values()
  assert plain is None and channel is None
  assert (token.segment_ids, token.embeddings) == ((5, 2), None)
  assert (token.reads, token.final) == ((L * 2, 2, 5, 2, D), (2, 5, 2, D))
  assert (both.embeddings, both.final) == ((5, 3, D), (2, 5, 3, D))
  assert (embeddings.embeddings, embeddings.reads) == ((5, 3, D), None)


@mixing
def test_training_carries_only_what_taps_need(options):
  state = jax.eval_shape(lambda: build(options, random=False).init(X, TokenContext(SEGMENTS)))
  assert state.cache is None
  assert (state.segment_ids is None) == (options["compressor"] == "channel")


@pytest.mark.parametrize("options", [CHANNEL, *MIXING, {"shared_compressor": True}], ids=str)
def test_fresh_compressors_average_and_the_expansion_copies(options):
  fresh = build(options, random=False)

  @jax.jit
  def run(made, x):
    state = made.init(x)
    reads = [made.read(state, 1, site)[0]["x"] for site in made.sites]
    last = run_layers(made, state)
    return state.x, reads, last.x, made.final(last)

  copies, reads, rows, final = jax.tree.map(np.asarray, run(fresh, X))
  np.testing.assert_array_equal(copies, np.broadcast_to(X, copies.shape))
  for read in reads:
    assert_close(read, X, 1e-6)
  assert np.ptp(rows, axis=0).max() > 1e-2  # rows that differ
  assert_close(final, np.mean(rows, axis=0), 1e-6)


@pytest.mark.parametrize("beta_init", [0.2, 1.0, 1.9])
def test_initial_gate(beta_init):
  fresh = build({"beta_init": beta_init}, random=False)
  gate = 2 / (1 + np.exp(-np.asarray(fresh.beta_bias[...])))
  assert_close(gate, np.full((L, 2), beta_init), 1e-6)


def test_write_needs_what_the_branch_saw():
  made = build({})

  @jax.jit
  def before(x):
    state = made.init(x)
    return state, *made.read(state, 0, "mlp")

  state, views, tape = before(X)
  for given in ({"normed": views}, {"tape": tape}):
    with pytest.raises(ValueError, match=r"'deep_delta' needs write\(\.\.\., normed=views, tape"):
      made.write(state, 0, "mlp", X, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
  "num_layers, options, least, most",
  [
    pytest.param(6, {}, 10, 40, marks=pytest.mark.release),
    (24, {}, 300, 1500),
    (96, {"eps": 0.1}, 0, 5),
    pytest.param(96, {"beta_init": 0.01}, 0, 5, marks=pytest.mark.release),
  ],
)
def test_the_gradient_at_init_grows_with_depth_as_the_docstring_says(
  num_layers, options, least, most
):
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 33)))

  sizes = {"num_layers": num_layers, "d_model": 32, "mlp_dim": 128, "vocab_size": 256}
  config = decoders.config("llama", "deep_delta", options, init_std=0.02, **sizes)
  graphdef, parameters = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))

  def loss(parameters):
    model = nnx.merge(graphdef, parameters)
    logits = jax.nn.log_softmax(model.logits(model(tokens[:, :-1])))
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()

  leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(parameters))
  norm = np.sqrt(sum(np.sum(np.square(np.float64(leaf))) for leaf in leaves))
  assert least < norm < most
