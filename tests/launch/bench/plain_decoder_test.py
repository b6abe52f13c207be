"""The plain decoder beside which `standard` is timed does the same work."""

import jax
import optax
import pytest

from launch.bench import plain_decoder, timed_step
from launch.bench.program import hlo
from launch.bench.program.matrix_flops import matrix_flops
from resjax.aot import program_text
from resjax.testing.compare import assert_close
from resjax.train import experiment, init_state, program

PLACES = {
  "embed/embedding": "embedding", "final_norm/scale": "norm",
  "layers/norms/attention/x/scale": "layers/norm", "layers/norms/mlp/x/scale": "layers/mlp_norm",
  **{f"layers/attention/{name}_proj/kernel": f"layers/{name}" for name in "qkvo"},
  **{f"layers/mlp/{name}_proj/kernel": f"layers/{name}" for name in ("gate", "up", "down")},
}  # fmt: skip


def small(**changes):
  config = timed_step.config_of("tiny", timed_step.PLAIN)
  config.update_from_flattened_dict(changes)
  config.model.update(num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, mlp_dim=48)
  config.data.seq_len, config.train.z_loss = 16, 0.0
  config.train.batch_size = 2
  return experiment.build(config, jax.devices()[:1])


def named(tree):
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def test_the_loss_gradients_and_products_are_those_of_standard():
  run = small()
  batch = timed_step._random_batch(run)
  programs = program.build(run)
  state = init_state(programs.model, programs.optimizer, seed=0)
  theirs = plain_decoder.parameters(run.decoder)
  values = named(state.params)
  assert values.keys() == PLACES.keys()
  paths, structure = jax.tree.flatten(theirs)
  given = dict(zip(named(theirs), paths, strict=True))
  back = {there: values[here] for here, there in PLACES.items()}
  assert {name: leaf.shape for name, leaf in back.items()} == {n: a.shape for n, a in given.items()}
  params = jax.tree.unflatten(structure, [back[name] for name in given])

  @jax.jit
  def of(params, tokens, targets):
    return jax.value_and_grad(plain_decoder.loss)(params, run.decoder, tokens, targets)

  arguments = params, batch["inputs"], batch["targets"]
  want, gradients = of(*arguments)
  steps = of.lower(*arguments), programs.lower_train_step()
  plain, ours = (matrix_flops(hlo.parse(program_text(step.compile()))) for step in steps)
  assert plain == ours > 0
  found = programs.train_step(state, run.layout.put(batch, 2))[1]
  assert_close(found["sums"].nats / found["sums"].tokens, want, 1e-6)
  assert_close(found["grad_norm"], optax.tree.norm(gradients), 1e-5)


def test_a_step_trains():
  run = small()
  batch = timed_step._random_batch(run)
  step, size = plain_decoder.stepper(run, batch["inputs"], batch["targets"])
  losses = [float(step()) for _ in range(20)]
  assert losses[-1] < 0.8 * losses[0]
  assert size == sum(leaf.size for leaf in program.build(run).model.leaves())


@pytest.mark.parametrize(
  ("changes", "said"),
  [
    ({"model.norm": "layernorm"}, "'norm': 'layernorm'"),
    ({"train.microbatches": 2}, "1 devices and 2 microbatches"),
  ],
)
def test_other_work_is_refused(changes, said):
  run = small(**changes)
  batch = timed_step._random_batch(run)
  with pytest.raises(ValueError, match=said):
    plain_decoder.stepper(run, batch["inputs"], batch["targets"])
