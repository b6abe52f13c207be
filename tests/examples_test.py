"""Combinators in models of others: each of docs/examples before and after the change."""

import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import diff_sizes
import dropout_nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import train_example
from flax import linen, nnx

from resjax import combinators
from resjax.testing.compare import assert_close
from tests.helpers import doc_commands, xla

EXAMPLES = Path(diff_sizes.__file__).parent
PAGE = EXAMPLES.parent / "foreign_models.md"
# More layers than `layers_per_block` of any default: with fewer a reader has one source alone.
SIZES = {"num_layers": 4, "d_model": 16, "num_heads": 2}
STEPS = 10


@functools.cache
def small_batch(name):
  """A batch with few rows and tokens."""
  task = train_example.task_of(name)
  (batch,) = task.batches(1)
  return (batch[0][:4, :17],) if task is train_example.TEXT else tuple(part[:8] for part in batch)


def make(name, kind):
  sizes = SIZES | ({"num_kv_heads": 1} if name == "gemma_nnx" else {})
  return train_example.make(name, kind, small_batch(name), **sizes)


def loss_of(name, apply):
  task = train_example.task_of(name)
  return lambda params, batch: task.loss(apply(params, *task.inputs(batch)), batch)


def labels(params):
  """By parameter, whether it is the combinator's: one rule for NNX and Linen."""

  def label(path, leaf):
    return "combinator" if "combinator" in jax.tree_util.keystr(path) else "host"

  return jax.tree.map_with_path(label, params)


def of_combinator(tree):
  """The leaves that belong to the combinator, by path."""
  leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]
  return {path: leaf for path, leaf in leaves if "combinator" in path}


def test_at_most_15_lines_are_typed():
  assert len(diff_sizes.NAMES) == 6
  assert all(diff_sizes.sizes(name)[0] <= 15 for name in diff_sizes.NAMES)


def test_the_command_prints_sizes_and_diffs(capsys):
  diff_sizes.main([])
  table = dict(re.findall(r"^(\w+) +(\d+) +\d+$", capsys.readouterr().out, re.MULTILINE))
  assert table == {name: str(diff_sizes.sizes(name)[0]) for name in diff_sizes.NAMES}
  diff_sizes.main(["gemma_nnx"])
  shown = capsys.readouterr().out
  assert "+++ gemma_nnx/after.py" in shown and '+    x = x.sublayer("attention", ' in shown
  with pytest.raises(SystemExit, match=r"'gemma' is not an example; allowed: .*gemma_nnx"):
    diff_sizes.main(["gemma"])


def test_the_page_shows_these_sizes():
  rows = re.findall(r"`(\w+)` \| (\d+) \| (\d+) \|", PAGE.read_text())
  shown = {name: (int(typed), int(replaced)) for name, typed, replaced in rows}
  assert shown == {name: diff_sizes.sizes(name) for name in diff_sizes.NAMES}


def test_the_model_of_the_page_runs():
  (code,) = doc_commands.python(PAGE)
  names = {}
  exec(code, names)
  assert names["y"].shape == (2, 16, 64) and np.isfinite(names["y"]).all()


def test_files_that_the_page_names_exist():
  commands = re.findall(r"^python (docs/\S+)", PAGE.read_text(), re.MULTILINE)
  links = re.findall(r"\]\((\S+)\)", PAGE.read_text())
  assert commands and all((EXAMPLES.parents[1] / path).exists() for path in commands), commands
  assert links and all((EXAMPLES.parent / path).exists() for path in links), links


@pytest.mark.slow
@pytest.mark.parametrize("name", diff_sizes.NAMES)
def test_the_model_with_standard_is_the_model_before_the_change(name):
  batch = small_batch(name)
  params, before = make(name, None)
  same, after = make(name, "standard")
  host = jax.tree.structure(same)  # `standard` has no parameters
  params = jax.tree.unflatten(host, jax.tree.leaves(params))
  got, want = (
    jax.jit(jax.value_and_grad(loss_of(name, f)))(params, batch) for f in (after, before)
  )
  assert_close(got, want, 1e-5)


QUICK = {
  "scanned_nnx": ("attn_res",),
  "scanned_linen": ("gate",),
  "vision_transformer": ("laurel",),
  "nanodo_linen": ("unet_skips",),
}
# Every system runs in a loop and in a scan of others; the other examples run one of each kind, the
# one with streams that compiles soonest.
WITH_ALL = ("vision_transformer", "scanned_linen")
KINDS = (
  "standard", "gate", "laurel", "deepnorm", "unet_skips", "attn_res", "delta_block_attn_res",
  "muddformer", "deep_delta", "hyper_connections", "gated_residual",
)  # fmt: skip
CASES = [
  pytest.param(name, kind, marks=() if kind in QUICK.get(name, ()) else pytest.mark.release)
  for name in diff_sizes.NAMES
  for kind in (combinators.names() if name in WITH_ALL else KINDS)
]


@pytest.mark.parametrize("name, kind", CASES)
@pytest.mark.slow
def test_every_example_trains_with_every_combinator(name, kind, tmp_path):
  batch = small_batch(name)
  params, apply = make(name, kind)
  own = combinators.build(kind, num_layers=4, d_model=16, rngs=nnx.Rngs(0), scaled_init=True)
  assert sum(leaf.size for leaf in of_combinator(params).values()) == own.num_parameters()
  step = jax.jit(jax.value_and_grad(loss_of(name, apply)))
  # Two optimizers by label, and a mask: biases and gains do not decay.
  optimizer = optax.partition(
    {
      "host": optax.adamw(5e-3, mask=lambda tree: jax.tree.map(lambda p: jnp.ndim(p) > 1, tree)),
      "combinator": optax.sgd(0.05),
    },
    labels,
  )
  opt_state = optimizer.init(params)

  @jax.jit
  def update(params, opt_state, gradients):
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

  first, gradients = step(params, batch)
  if name == "vision_transformer":
    still = {
      path.split("'")[3] for path, leaf in of_combinator(gradients).items() if not np.any(leaf)
    }
    assert still == zeros_of_page().get(kind, set())
  for _ in range(STEPS):
    _, gradients = step(params, batch)
    params, opt_state = update(params, opt_state, gradients)
  last, gradients = step(params, batch)
  assert last < 0.9 * first, (first, last)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
  still = [path for path, leaf in of_combinator(gradients).items() if not np.any(leaf)]
  assert not still, still
  check_round_trip(params, tmp_path / "saved")


def zeros_of_page():
  """By combinator, the parameters that the page says have no gradient in the first step."""
  rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (`\w+`(?:, `\w+`)*) \|$", PAGE.read_text(), re.M)
  table = [[re.findall(r"\w+", cell) for cell in row] for row in rows]
  return {kind: set(parameters) for kinds, parameters in table for kind in kinds}


def test_two_factors_that_start_at_zero_are_refused():
  with pytest.raises(ValueError, match=r"a product of both never learns; take --combinator=lay"):
    make("diffusion_transformer", "rezero")


def check_round_trip(params, folder):
  """Orbax gives back what it was given, for shapes from `jax.eval_shape`."""
  plain = nnx.to_pure_dict(params) if isinstance(params, nnx.State) else params
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, plain)
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(folder, jax.eval_shape(lambda: plain))
  jax.tree.map(np.testing.assert_array_equal, restored, plain)


def test_dropout_draws_anew_in_every_step_and_not_in_evaluation():
  model, losses = dropout_nnx.train("gate", 2, num_layers=2, d_model=16)
  assert len(losses) == 2 and np.isfinite(losses).all()
  # Two sites draw from one dropout.
  np.testing.assert_array_equal(model.layers.dropout.rngs.count[...], [4, 4])
  model.eval()
  tokens = jnp.asarray(small_batch("scanned_nnx")[0])
  assert dropout_nnx.loss(model, tokens) == dropout_nnx.loss(model, tokens)


@pytest.mark.parametrize("name", ["scanned_linen", "scanned_nnx"])
@pytest.mark.slow
def test_shapes_without_memory_and_eager_values(name):
  """`eval_shape` of the whole model, and what `jit` and a split and merge leave unchanged."""
  inputs = train_example.task_of(name).inputs(small_batch(name))
  module = importlib.import_module(f"{name}.after")
  if issubclass(module.Model, linen.Module):
    model = module.Model("attn_res", **SIZES)
    abstract = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
  else:
    abstract = nnx.state(
      nnx.eval_shape(lambda: module.Model("attn_res", **SIZES, rngs=nnx.Rngs(0)))
    )
  params, apply = make(name, "attn_res")
  assert jax.tree.map(jnp.shape, abstract) == jax.tree.map(jnp.shape, params)
  assert_close(apply(params, *inputs), jax.jit(apply)(params, *inputs), 1e-5)


@pytest.mark.slow
def test_memory_is_that_of_the_scan_before_and_linear_in_depth():
  def mebibytes(kind, num_layers):
    batch = (np.zeros((8, 257), np.int32),)
    sizes = {"num_layers": num_layers, "d_model": 64, "num_heads": 2, "max_positions": 256}
    params, apply = train_example.make("scanned_linen", kind, batch, **sizes)
    gradient = jax.jit(jax.grad(loss_of("scanned_linen", apply)))
    return gradient.lower(params, batch).compile().memory_analysis().temp_size_in_bytes / 2**20

  assert mebibytes("standard", 16) <= 1.02 * mebibytes(None, 16)
  # With fewer layers than 16 the peak lies elsewhere, in the logits.
  few, some, many = (mebibytes("attn_res", n) for n in (16, 32, 48))
  assert many - some < 1.25 * (some - few)  # 1.67 if the bank were kept once per layer


@pytest.mark.release
def test_a_command_trains_before_and_after(tmp_path):
  """One process each would be slow: after alone is started, before is called."""
  losses = train_example.train("diffusion_transformer", None, 40)
  assert len(losses) == 40 and np.mean(losses[-20:]) < 0.5 * losses[0]
  command = [sys.executable, EXAMPLES / "train_example.py", "diffusion_transformer"]
  command += ["--combinator=gate", "--steps=40"]
  env = {**os.environ, "XLA_FLAGS": xla.QUICK, "PYTHONPATH": os.pathsep.join(sys.path)}
  done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
  found = re.search(r"^diffusion_transformer, gate: loss ([\d.]+) to ([\d.]+)$", done.stdout, re.M)
  assert found and float(found[2]) < 0.5 * float(found[1]), done.stdout + done.stderr
