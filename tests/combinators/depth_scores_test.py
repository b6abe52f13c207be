"""Rules of depth reads: the forms that they have in common, and what each of them depends on."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from resjax.combinators.depth_scores import DepthScores
from resjax.kernels.depth_attention import Sources
from resjax.testing import toy
from tests.helpers.reference import depth_read

D, N, EPS = 8, 4, 1e-6
RULE = DepthScores(width=D, eps=EPS)


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def draw(*shape):
  return np.random.default_rng(sum(shape)).normal(size=shape)


SOURCES = draw(N, 2, 3, D)


def read(reader, sources=SOURCES, **rule):
  return compiled(DepthScores.read, dataclasses.replace(RULE, **rule), reader, sources)


@functools.partial(jax.jit, static_argnums=(0, 1))
def compiled(method, rule, reader, sources):
  return method(rule, reader, Sources(recent=tuple(sources)))


def same(got, want, tolerance=1e-13):
  np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_the_defaults_are_what_kernels_compute(num_heads):
  query, gain = draw(D), draw(D + 1)[:D]
  assert not dataclasses.replace(RULE, num_heads=num_heads).plain
  got = read({"query": query, "key_scale": gain}, num_heads=num_heads)
  same(got, depth_read(query, gain, list(SOURCES), EPS, num_heads))


def test_a_scale_is_a_factor_of_the_query():
  query = draw(D)
  want = read({"query": query / np.sqrt(D)}, key_norm="plain")
  same(read({"query": query}, key_norm="plain", scale="rsqrt"), want)
  learned = {"query": query, "log_scale": np.log(D**-0.5)}
  same(read(learned, key_norm="plain", scale="learned"), want)
  flat = {"key_norm": "plain", "scale": "learned", "temperature": 0.5 * D**0.5}
  same(read({"query": query, "log_scale": np.log(0.5)}, **flat), want)
  rule = dataclasses.replace(RULE, key_norm="plain", scale="rsqrt")
  assert not rule.plain
  same(rule.folded({"query": query})["query"], query / np.sqrt(D))


def test_keys_of_full_rank_are_keys():
  query = draw(D)
  want = depth_read(query, np.ones(D), list(SOURCES), EPS)
  same(read({"query": query}, key_norm="plain", key_rank=D), want)


def test_keys_of_low_rank_see_the_last_channels_alone():
  rule = dataclasses.replace(RULE, key_norm="plain", key_rank=3)
  changed = SOURCES + np.where(np.arange(D) < D - 3, 1.0, 0.0)
  a, b = (compiled(DepthScores.weigh, rule, {"query": draw(3)}, s) for s in (SOURCES, changed))
  same(a, b, 0)
  assert np.std(a) > 0.01


def test_fresh_reads():
  """Uniform means, half the stream, and values that are normalised where there are several."""
  zero = {"query": np.zeros(D), "key_scale": np.ones(D)}
  same(read(zero), SOURCES.mean(axis=0))
  same(read(zero, weights="sigmoid"), SOURCES.sum(axis=0) / 2)
  same(read({"logit": np.zeros(N)}, weights="static"), SOURCES.mean(axis=0))
  same(read(zero, window=2), SOURCES[[0, 2, 3]].mean(axis=0))
  normed = SOURCES / np.sqrt(np.mean(SOURCES**2, axis=-1, keepdims=True) + EPS)
  same(read(zero, value_norm=True), normed.mean(axis=0))
  same(read(zero, SOURCES[:1], value_norm=True), SOURCES[0])


def test_what_a_query_depends_on():
  dynamic = {"query": draw(D), "key_scale": np.ones(D), "query_weight": np.zeros((D, D))}
  want = depth_read(dynamic["query"], np.ones(D), list(SOURCES), EPS)
  same(read(dynamic, dynamic_query=True), want)
  dynamic["query_weight"] = draw(D, D)
  newest = SOURCES[-1] / np.sqrt(np.mean(SOURCES[-1] ** 2, axis=-1, keepdims=True) + EPS)
  got = read(dynamic, dynamic_query=True)
  for b, t in np.ndindex(2, 3):
    query = dynamic["query"] + newest[b, t] @ dynamic["query_weight"]
    same(got[b, t], depth_read(query, np.ones(D), list(SOURCES[:, b, t]), EPS))


@pytest.mark.parametrize("options", [{"window": 2}, {"value_norm": True}], ids=str)
@pytest.mark.slow
def test_a_window_and_normalised_values_are_not_neutral(options):
  made = toy.build("attn_res", options, random=False)
  assert not made.equals_standard_at_init
  outputs = [
    toy.rms_norm(toy.compiled_by_hand(c, toy.layers(dtype=float), toy.embeddings(float)))
    for c in (made, toy.build("standard", {}, random=False))
  ]
  assert np.sqrt(np.mean((outputs[0] - outputs[1]) ** 2)) > 0.1


def test_tied_readers_of_views_read_one_view():
  made = toy.build("attn_res", {"views": "qkv"})
  for tied, parameter in ((made.view_query, made.query), (made.view_key_scale, made.key_scale)):
    tied[...] = np.asarray(parameter[...])[:, :1].repeat(2, axis=1)

  @jax.jit
  def before(made, sources):
    state = dataclasses.replace(made.init(sources[0]), sources=Sources(tuple(sources)))
    return state, made.read(state, 2, "attention")[0]

  state, views = before(made, SOURCES)
  same(views["k"], views["x"])
  same(views["v"], views["x"])
  with pytest.raises(ValueError, match="given the views x, k, v, and its branch leaves out k, v"):
    made.write(state, 2, "attention", SOURCES[0], normed={"x": views["x"]})
