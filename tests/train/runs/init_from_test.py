"""A run that starts from another one's parameters goes on with the function that it learned."""

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.combinators import registry
from resjax.models.config import ResidualConfig
from resjax.models.model_def import ModelDef
from resjax.train import experiment, optim
from resjax.train.checkpoint.reader import restore_params
from resjax.train.runs import init_from, parents, workdir
from resjax.train.state import first_state
from resjax.train.step import make_train_step
from tests.helpers import layouts, walks
from tests.helpers.losses import text_loss
from tests.helpers.runs import write_text
from tests.helpers.trained import STEPS, B, T, evaluations, run, settings

SIZES = {"num_layers": 3, "d_model": 32, "sites": ("attention", "mlp")}


def claims(name):
  options = SIZES | combinators.options(name)
  made = nnx.eval_shape(lambda: combinators.get(name)(**options, rngs=nnx.Rngs(0)))
  return made.equals_standard_at_init


CLAIMED = [name for name in combinators.names() if claims(name)]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
  return write_text(tmp_path_factory.mktemp("init_from"))


@pytest.fixture(scope="module")
def parent(root) -> parents.FromRun:
  """A trained run with `standard`; no norm, bias or kernel is as at init."""
  run(settings(root, root / "parent", "standard"))
  return parents.find(str(root / "parent"))


def model_def(name, options=None):
  """A model with the sizes of the parent, on one device."""
  c = settings(Path(), Path(), "standard")
  c.mesh.update(data=-1, fsdp=1)
  decoder = experiment.build(c).with_vocab_size(257).decoder
  options = combinators.options(name) if options is None else options
  decoder = dataclasses.replace(decoder, residual=ResidualConfig(name, options))
  return ModelDef(decoder, layouts.layout(devices=jax.devices()[:1]))


def batch():
  rows = np.random.default_rng(0).integers(0, 256, (B, T + 1), dtype=np.int32)
  ones, positions = np.ones((B, T), np.int32), np.tile(np.arange(T, dtype=np.int32), (B, 1))
  inputs, targets = rows[:, :-1], rows[:, 1:]
  return {"inputs": inputs, "targets": targets, "segment_ids": ones, "positions": positions}


def loss(model, params):
  @jax.jit
  def nats(params):
    return text_loss(model.bind(params), batch(), B * T).nats

  return float(nats(params))


def started(model, parent):
  return init_from.start(parent, model, 0, parent.saved.workdir / workdir.TOKENIZER)


@pytest.fixture(scope="module")
def learned(parent):
  """The parent's parameters and its loss."""
  model = model_def("standard")
  params = restore_params(parent.source, model.abstract)
  fresh = model.init(0)
  for new, old in zip(jax.tree.leaves(params), jax.tree.leaves(fresh), strict=True):
    assert not np.array_equal(new, old)
  return params, loss(model, params)


def flat(tree):
  return nnx.traversals.flatten_mapping(tree, sep="/")


def test_gates_and_attention_residuals_claim_to_be_standard():
  assert {"standard", "gate", "attn_res", "block_attn_res"} <= set(CLAIMED)
  assert "attenuation" not in CLAIMED


@walks.names("standard", "gate", "block_attn_res", "muddformer", among=CLAIMED)
@pytest.mark.slow
def test_neutral_combinators_go_on_with_the_parents_function(parent, learned, name):
  model = model_def(name)
  params, inheritance = started(model, parent)
  # Two orders of the same float32 sums.
  np.testing.assert_allclose(loss(model, params), learned[1], rtol=1e-5)
  fresh, theirs = flat(model.init(0)), flat(learned[0])
  for path, value in flat(params).items():
    if inheritance.norms and path in ("combinator/gain", "combinator/final_gain"):
      continue  # made of norms; the loss tells
    want = fresh[path] if path in inheritance.new else theirs[inheritance.taken[path]]
    np.testing.assert_array_equal(value, want, err_msg=path)
  assert jax.tree.structure(params) == jax.tree.structure(model.abstract)


class _Views(combinators.Standard):
  """`standard`, whose attention is given q, k and v by name."""

  def view_names(self, site):
    return ("x", "q", "k", "v") if site == "attention" else ("x",)

  def read(self, state, layer, site):
    return dict.fromkeys(self.view_names(site), state), None


@pytest.mark.slow
def test_norms_of_views_start_as_the_norm_of_the_stream(parent, learned, monkeypatch):
  monkeypatch.setitem(registry._REGISTRY, "views", _Views)
  model = model_def("views", {})
  params, inheritance = started(model, parent)
  assert not inheritance.new
  for view in "qkv":
    path = f"layers/norms/attention/{view}/scale"
    assert inheritance.taken[path] == "layers/norms/attention/x/scale"
  np.testing.assert_allclose(loss(model, params), learned[1], rtol=1e-6)
  # A step donates its state, which fails where two parameters are one array.
  config = experiment.build(settings(Path(), Path(), "standard"))
  optimizer = optim.make_optimizer(config.optim, 9)
  step = make_train_step(model, optimizer, optim.schedule(config.optim, 9), config.train)
  step(first_state(model, optimizer, params), batch())


def test_a_combinator_in_place_of_norms_takes_their_gains(parent, learned):
  params, inheritance = started(model_def("gated_residual"), parent)
  found, theirs = flat(params), learned[0]
  pre = theirs["layers"]["norms"]
  want = np.stack([pre[site]["x"]["scale"] for site in SIZES["sites"]], axis=1)
  np.testing.assert_array_equal(found["combinator/gain"][:, :, 2], 2 * want)
  np.testing.assert_array_equal(
    found["combinator/final_gain"][3], 2 * theirs["final_norm"]["scale"]
  )
  assert sorted(inheritance.norms) == ["attention", "mlp", "output"]
  layer_norms = dataclasses.replace(model_def("gated_residual").config, norm="layernorm")
  with pytest.raises(ValueError, match="final_norm/scale has no place here"):
    started(ModelDef(layer_norms, layouts.layout(devices=jax.devices()[:1])), parent)


def test_a_combinator_in_place_of_the_norms_of_branches_goes_on_with_the_parents_function(
  root, parent, learned
):
  """`lns` divides what it reads by the root of the layer, which its gains make up for."""
  model = model_def("lns")
  params, inheritance = started(model, parent)
  np.testing.assert_allclose(loss(model, params), learned[1], rtol=1e-5)
  assert sorted(inheritance.norms) == ["attention", "mlp"] and not inheritance.new
  assert init_from.changes(parent, model, experiment.build(settings(root, root / "o", "lns"))) == []


@pytest.mark.slow
def test_run_starts_from_a_workdir_and_resumes_without_it(root, parent):
  moved = shutil.copytree(parent.saved.workdir, root / "moved")
  child = settings(root, root / "child", "block_attn_res", init_from=str(moved))
  printed = run(child)
  assert f"starting from {moved}/checkpoints/{STEPS}" in printed
  assert "new, as at init: combinator/query  3 × 2 × 32" in printed
  assert "the function is the parent's" in printed
  np.testing.assert_allclose(
    evaluations(root / "child")[0], evaluations(parent.saved.workdir)[-1], rtol=1e-5
  )
  shutil.rmtree(moved)
  child.train.steps = STEPS + 1
  printed = run(child)
  assert f"resuming after step {STEPS} of {STEPS + 1}" in printed
  assert "starting from" not in printed
  child.train.init_from = ""
  with pytest.raises(ValueError, match=r"config\.train\.init_from was '.*moved' and is ''"):
    run(child)


def test_a_checkpoint_is_a_parent_too(parent):
  assert parents.find(str(parent.source)) == parent


IDLE_VALUES = {
  "value_residual": "gated",
  "value_gate": {"gate": "tanh", "last_k": 0, "zero_init": True},
  "value_mixing": "depth",
  "depth_values": {"stride": 2, "recent": 0, "zero_init": True},
}


@pytest.mark.parametrize(
  ("name", "model", "reason"),
  [
    ("standard", {}, None),
    ("gate", {"init_std": 0.5}, None),
    (
      "attenuation",
      {},
      "'attenuation' with these options is not what 'standard' with its options is",
    ),
    ("gate", {"short_swa": {"window": 3, "num_heads": 0, "zero_init": True}}, None),
    ("gate", {"norm_gate": {"rank": 2, "form": "neutral"}}, None),
    ("standard", IDLE_VALUES, None),
    (
      "standard",
      {"value_residual": "gated"},
      "config.model.value_residual was 'none' and is 'gated'",
    ),
    ("gate", {"rope_theta": 5.0}, "config.model.rope_theta was 10000.0 and is 5.0"),
  ],
)
def test_what_changes_the_function_is_named(root, parent, name, model, reason):
  c = settings(root, root / "other", name)
  c.model.update(model)
  changes = init_from.changes(parent, model_def(name), experiment.build(c))
  assert changes == ([reason] if reason else [])


@pytest.mark.parametrize(
  ("name", "reason"),
  [
    ("gate", []),
    ("attn_res", ["'attn_res' with these options is not what 'standard' with its op"]),
  ],
)
def test_models_without_norms_before_branches(root, parent, monkeypatch, name, reason):
  """A read that is the stream times a number is then another one."""
  c = settings(root, root / "other", name)
  c.model.pre_norm = False
  theirs = settings(root, root / "theirs", "standard")
  theirs.model.pre_norm = False
  identity = workdir.model_identity(experiment.build(theirs).decoder)
  monkeypatch.setattr(parents.FromRun, "identity", lambda *_: identity)
  found = init_from.changes(parent, model_def(name), experiment.build(c))
  assert [line[: len(start)] for line, start in zip(found, reason, strict=True)] == reason


@pytest.mark.parametrize(
  ("ours", "words"),
  [
    ({"a/kernel": (2, 4)}, ["a/kernel is (2, 3) there and a/kernel is (2, 4) here"]),
    ({"b/kernel": (2, 3)}, ["a/kernel has no place here"]),
  ],
)
def test_parameters_that_do_not_fit(ours, words):
  with pytest.raises(ValueError) as error:
    init_from.match({"a/kernel": (2, 3)}, ours)
  for word in [*words, "config.train.init_from", "config.model"]:
    assert word in str(error.value)
  assert "\n" not in str(error.value)


def test_a_parent_with_a_trained_combinator_is_no_standard(root, parent):
  theirs = {path: leaf.shape for path, leaf in flat(model_def("gate").abstract).items()}
  ours = {path: leaf.shape for path, leaf in flat(model_def("standard").abstract).items()}
  with pytest.raises(ValueError, match="combinator/bias has no place here"):
    init_from.match(theirs, ours)


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_no_checkpoint(root, path):
  lost = settings(root, root / "lost", "gate", init_from=path)
  with pytest.raises(ValueError, match=rf"config\.train\.init_from='{path}' has no checkpoint"):
    run(lost)


def test_another_vocabulary(root, parent, tmp_path):
  other = tmp_path / "tokenizer.json"
  other.write_text("{}")
  with pytest.raises(ValueError, match=r"config\.train\.init_from: the tokenizer of .*parent"):
    init_from.start(parent, model_def("standard"), 0, other)
