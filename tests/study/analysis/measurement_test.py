"""The alignment equals that of float64 NumPy on stored activations, on any devices."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.combinators.base import OUTPUT
from resjax.models.model_def import ModelDef
from resjax.study.analysis.alignment import METRICS, READINGS
from resjax.study.analysis.measurement import measure
from resjax.study.analysis.probing import ProbeConfig
from resjax.study.analysis.token_groups import frequency_deciles
from tests.helpers import alignment, decoders, layouts

T = 16
SYSTEMS = {
  "standard": {},
  "attn_res": {},
  "block_attn_res": {"layers_per_block": 2},
  "muddformer": {},
}
MESHES = {
  "fsdp_tp": {"data": 2, "fsdp": 2, "tensor": 2},
  "long_context": {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2},
}


def batch(rows=4, vocab=31):
  """Returns rows of two documents with repeated tokens; the first row ends in padding."""
  rng = np.random.default_rng(0)
  tokens = np.minimum(rng.geometric(0.15, (rows, T)), vocab) - 1
  segment_ids = np.repeat([[1, 2]], T // 2, axis=1) * np.ones((rows, 1), int)
  segment_ids[0, -3:] = 0
  positions = np.tile(np.arange(T // 2), (rows, 2))
  found = {"inputs": tokens, "segment_ids": segment_ids, "positions": positions}
  return {key: np.asarray(value, np.int32) for key, value in found.items()}


def model(name, style="llama", **changes):
  return decoders.decoder(decoders.config(style, name, SYSTEMS.get(name, {}), **changes))


def measured(decoder, batches, **changes):
  config = ProbeConfig(every="site", readings=READINGS, chunk_size=8, kl_every=4)
  options = {"batch_size": len(batches[0]["inputs"]), "num_bootstrap": 50, "config": config}
  return measure(decoder, batches, model="a", corpus="b", **options | changes)


def check(group, want):
  assert set(group.metrics) == set(METRICS)
  assert set(METRICS) - set(want) <= {"kl_to_final"}  # A small group may have no token for it.
  for name, values in want.items():
    np.testing.assert_allclose(group.metrics[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@functools.cache
def subject(name, style):
  """Returns a decoder, a text, the alignment, and the activations that a loop stored."""
  decoder, rows = model(name, style, tied_embeddings=name != "attn_res"), batch()
  return decoder, rows, measured(decoder, [rows]), alignment.states(decoder, rows)


@functools.cache
def by_numpy(name, style, every="site"):
  decoder, rows, _, stored = subject(name, style)
  return alignment.Trajectories(decoder, stored, rows, every=every, kl=lambda t: t % 4 == 2)


@pytest.mark.parametrize(
  "name, style",
  [("block_attn_res", "llama")]
  + [
    pytest.param(*system, marks=pytest.mark.release)
    for system in (("standard", "gpt2"), ("attn_res", "llama"), ("muddformer", "llama"))
  ],
)
def test_figures_are_those_of_numpy_on_stored_activations(name, style):
  found, want = subject(name, style)[2], by_numpy(name, style)
  for reading in READINGS:
    group = found.readings[reading]["all"]
    assert group.num_tokens == len(want.members)
    assert group.num_kl_tokens == sum(t % 4 == 2 for _, t in want.members)
    check(group, want.means(reading, want.members))


@pytest.mark.slow
def test_positions_after_layers_are_some_of_those_after_sites():
  decoder, rows, _, _ = subject("block_attn_res", "llama")
  config = ProbeConfig(every="layer", readings=READINGS, kl_every=4)
  found = measured(decoder, [rows], config=config)
  want = by_numpy("block_attn_res", "llama", every="layer")
  assert [p.layer for p in found.positions] == [-1, 0, 1, 2]
  for reading in READINGS:
    check(found.readings[reading]["all"], want.means(reading, want.members))


def test_distinct_tokens_and_deciles_are_groups_of_their_own():
  _, rows, found, _ = subject("block_attn_res", "llama")
  found, tokens, members = found.readings["closed"], rows["inputs"], alignment.counted(rows)
  following = {(b, t): tokens[b, t + 1] for b, t in members}
  counts = np.bincount(list(following.values()), minlength=31)
  deciles = frequency_deciles(counts)
  wanted = {"distinct": [place for place in members if tokens[place] != following[place]]}
  for number in range(10):
    wanted[f"decile_{number}"] = [p for p in members if deciles[following[p]] == number]
  assert 0 < len(wanted["distinct"]) < len(members)
  for name, places in wanted.items():
    assert found[name].num_tokens == len(places)
    if places:
      check(found[name], by_numpy("block_attn_res", "llama").means("closed", places))
    else:
      assert found[name].shifts == {} and np.isnan(found[name].metrics["entropy"]).all()


@pytest.mark.slow
def test_batches_add_up_and_fill_up_rows_do_not_count():
  decoder, rows = model("standard"), batch(6)
  parts = [{key: value[i : i + 4] for key, value in rows.items()} for i in (0, 4)]
  padding = {key: np.zeros((2, T), np.int32) for key in rows}
  parts[1] = {key: np.concatenate([value, padding[key]]) for key, value in parts[1].items()}
  whole, split = measured(decoder, [rows]), measured(decoder, parts)
  assert whole.num_rows == split.num_rows == 6
  for name in ("all", "decile_3"):
    one, other = (found.readings["closed"][name] for found in (whole, split))
    assert one.num_tokens == other.num_tokens and one.shifts.keys() == other.shifts.keys()
    for metric in METRICS:
      np.testing.assert_allclose(one.metrics[metric], other.metrics[metric], rtol=1e-5, atol=1e-6)


def test_depth_weights_are_means_over_tokens():
  _, rows, found, stored = subject("block_attn_res", "llama")
  found, stored = found.depth_weights, stored["weights"]
  assert found.sources == ("embedding", "block 0", "block 1")
  assert [(p.layer, p.site) for p in found.readers] == list(stored)
  assert found.readers[-1].site == OUTPUT
  for row, weights in zip(found.weights, stored.values(), strict=True):
    want = np.mean([weights[:, b, t] for b, t in alignment.counted(rows)], axis=0)
    np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, rules",
  [("standard", "fsdp_tp"), ("standard", "long_context"), ("block_attn_res", "long_context")],
)
def test_eight_devices_find_what_one_finds(name, rules):
  config = decoders.config("llama", name, SYSTEMS[name], vocab_size=32)
  rows, params = batch(8, 32), nnx.to_pure_dict(nnx.state(decoders.decoder(config)))
  found = []
  for layout in (Layout(), layouts.layout(rules, **MESHES[rules])):
    made = ModelDef(config, layout)
    if layout.has_mesh:
      params = jax.device_put(params, jax.tree.map(lambda leaf: leaf.sharding, made.abstract))
    options = {"config": ProbeConfig(readings=READINGS, chunk_size=4, kl_every=2)}
    found.append(measured(made.bind(params), [rows], **options))
  one, eight = found
  for reading in READINGS:
    for name, group in one.readings[reading].items():
      other = eight.readings[reading][name]
      assert (other.num_tokens, other.num_kl_tokens) == (group.num_tokens, group.num_kl_tokens)
      assert other.shifts == group.shifts
      for metric, values in group.metrics.items():
        np.testing.assert_allclose(other.metrics[metric], values, rtol=1e-5, atol=1e-5)
  if one.depth_weights is not None:
    np.testing.assert_allclose(eight.depth_weights.weights, one.depth_weights.weights, atol=1e-6)


def test_a_text_without_a_next_token_is_refused():
  rows = {key: value[:, :1] for key, value in batch().items()}
  with pytest.raises(ValueError, match="the text of 'b' has no token with a next one"):
    measured(model("standard"), [rows])


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"every": "head"}, "every='head' must be one of layer, site"),
    ({"readings": ("open",)}, r"readings=\('open',\) must be some of closed, read"),
    ({"readings": ()}, r"readings=\(\) must be some of closed, read"),
    ({"chunk_size": 0}, "chunk_size=0 must be at least 1"),
    ({"kl_every": -1}, "kl_every=-1 must be 0"),
  ],
)
def test_probes_that_cannot_be_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    ProbeConfig(**changes)


def test_standard_errors_come_from_the_means_of_rows():
  _, rows, found, _ = subject("block_attn_res", "llama")
  group, want = found.readings["read"]["all"], by_numpy("block_attn_res", "llama")
  split = [[at for at in want.members if at[0] == row] for row in range(len(rows["inputs"]))]
  each = [want.means("read", members) for members in split]
  n = np.array([len(members) for members in split])
  for name in ("next_log_rank", "branch_norm", "entropy"):
    s = np.stack(
      [np.array(means[name]) * count for means, count in zip(each, n, strict=True)], axis=-1
    )
    residuals = s - n * s.sum(axis=-1, keepdims=True) / n.sum()
    error = np.sqrt(len(n) / (len(n) - 1) * np.sum(residuals**2, axis=-1)) / n.sum()
    np.testing.assert_allclose(group.standard_errors[name], error, rtol=1e-4, atol=1e-6)
  assert set(group.standard_errors) == set(group.metrics)
