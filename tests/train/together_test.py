"""Runs that train in one program: each is the run that it would be alone."""

import io
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from configs import tiny
from resjax.aot import absent_devices
from resjax.base.records.metrics_log import METRICS_FILE, read_metrics
from resjax.train import experiment, program, together
from resjax.train.loop import train
from resjax.train.runs import same_program
from resjax.train.state import init_state
from tests.helpers import trained
from tests.helpers.libtpu import needs_libtpu
from tests.helpers.runs import finish, last_step, small_command, start, wait_for, write_text

V, T, B, RATES = 64, 16, 4, (1e-3, 1e-2)


def run_of(**changes):
  c = tiny.get_config()
  c.model.update(num_layers=2, d_model=32, mlp_dim=64)
  c.model.residual.name, c.data.seq_len = "gate", T
  c.train.update(batch_size=B, loss_chunk=T, steps=20)
  c.optim.update(warmup_steps=5, **changes)
  return experiment.build(c, jax.devices()[:1]).with_vocab_size(V)


def rows(seed):
  tokens = np.random.default_rng(seed).integers(0, V, (2, B, T), dtype=np.int32)
  positions = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
  ones = np.ones((B, T), np.int32)
  found = {"inputs": tokens[0], "targets": tokens[1], "positions": positions, "segment_ids": ones}
  return found | {"bytes": np.full(B, T, np.int32)}


def stacked(trees):
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.fixture(scope="module")
def pair():
  """The compiled program of two runs."""
  made = together.build(run_of(), len(RATES))
  return made, made.lower_train_step().compile()


def states(made):
  return [init_state(made.model, made.optimizer, seed) for seed in range(len(RATES))]


@pytest.mark.slow
def test_each_run_is_its_single_run(pair):
  made, step = pair
  single = program.build(run_of(learning_rate=RATES[1]))
  alone, both = init_state(made.model, made.optimizer, 1), stacked(states(made))
  for number in range(20):
    alone, wanted = single.train_step(alone, rows(100 + number))
    batch = stacked([rows(number), rows(100 + number)])
    both, values = step(both, batch, jnp.array(RATES))
  close = lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-5, atol=1e-5)  # noqa: E731
  jax.tree.map(close, both, alone)
  jax.tree.map(close, values, wanted)
  assert values["learning_rate"][1] == wanted["learning_rate"]  # every bit


def test_each_run_has_its_own_guard(pair):
  made, step = pair
  one, two = states(made)
  bad = jax.tree.map(lambda leaf: leaf.at[...].set(jnp.nan), two.params)
  both = stacked([one, two.__class__(two.step, bad, two.opt_state, two.guard)])
  before = jax.device_get(both)
  batch = stacked([rows(0), rows(1)])
  after, values = jax.device_get(step(both, batch, jnp.array(RATES)))
  np.testing.assert_array_equal(values["skipped"], [0, 1])
  np.testing.assert_array_equal(after.guard.in_a_row, [0, 1])
  np.testing.assert_array_equal(after.step, [1, 1])
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b[1]),
               after.opt_state, before.opt_state)  # fmt: skip
  moved = jax.tree.map(lambda a, b: (a[0] != b[0]).any(), after.params, before.params)
  assert jax.tree.leaves(moved).count(True) > 5


@needs_libtpu
@pytest.mark.slow
@pytest.mark.usefixtures("no_tpu")
def test_kernels_compile_together_for_a_tpu():
  c = tiny.get_config()
  c.model.update(num_layers=2, d_model=256, num_heads=2, num_kv_heads=2)
  run = experiment.build(c, absent_devices.describe("v5e-1").devices).with_vocab_size(512)
  made = program.build(run), together.build(run, 3)
  kernels = [
    m.lower_train_step().compile().as_text().count('custom_call_target="tpu_custom_call"')
    for m in made
  ]
  assert kernels[0] == kernels[1] > 0


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"optim.b1": 0.8}, "config.optim.b1 is 0.9 in a and 0.8 in b"),
    ({"train.steps": 9}, "config.train.steps is 300 in a and 9 in b"),
    ({"model.residual.name": "gate"}, "config.model.residual.name is 'block_attn_res' in a and"),
    ({"workdir": "a"}, "two runs have config.workdir='a'"),
  ],
)
def test_runs_that_differ_in_more_are_refused(change, message):
  first = tiny.get_config()
  first.workdir = "a"
  second = first.copy_and_resolve_references()
  free = {"workdir": "b", "seed": 1, "init_seed": 2, "data.order_seed": 3}
  second.update_from_flattened_dict(free | {"optim.learning_rate": 1.0})
  same_program.check([first.to_dict(), second.to_dict()])
  second.update_from_flattened_dict(change)
  with pytest.raises(ValueError, match=re.escape(message)) as raised:
    same_program.check([first.to_dict(), second.to_dict()])
  assert "\n" not in str(raised.value)


def test_runs_that_share_their_steps_have_no_job_of_their_own():
  config = tiny.get_config()
  config.train.goodput_job = "job"
  same_program.check([config.to_dict()])
  with pytest.raises(ValueError, match="goodput_job=job is the job of one run"):
    same_program.check([config.to_dict(), config.to_dict()])


def records(workdir):
  """The records of a run without times."""
  timed = ("time/", "goodput/", "memory/")
  found = read_metrics(workdir / METRICS_FILE)
  kept = [{key: r[key] for key in r if not key.startswith(timed)} for r in found]
  return [record for record in kept if len(record) > 1]  # a stop leaves one of times alone


def assert_alike(found, wanted):
  assert [r.keys() for r in found] == [r.keys() for r in wanted]
  for one, other in zip(found, wanted, strict=True):
    for key in one:
      np.testing.assert_allclose(one[key], other[key], 1e-5, err_msg=f"{key} of {one['step']}")


@pytest.mark.slow
def test_folders_are_those_of_single_runs_and_one_that_ends_stops_no_other(tmp_path):
  root = write_text(tmp_path)

  def config(name, **changes):
    made = trained.settings(root, root / name, "gate", log_every=1, steps=20, eval_every=10)
    made.optim.warmup_steps = 5
    made.update_from_flattened_dict(changes)
    return made

  changes = {"seed": 3, "optim.learning_rate": 3e-3}
  runs = {"a": {}, "b": changes, "wild": {"optim.learning_rate": 1e6}}
  built = [experiment.build(config(name, **own)) for name, own in runs.items()]
  with pytest.raises(ValueError, match=rf"^1 of 3 runs ended: {root}/wild: step 1 has .* update"):
    together.train(built, Console(file=io.StringIO()))
  train(experiment.build(config("alone", **changes)), Console(file=io.StringIO()))
  assert_alike(records(root / "b"), records(root / "alone"))
  wild = read_metrics(root / "wild" / METRICS_FILE)
  assert wild[-1]["train/ended_by_guard"]
  assert [r["time/runs"] for r in wild if "time/runs" in r] == [3]
  files = {path.name for path in (root / "alone").iterdir()}
  assert files == {path.name for path in (root / "a").iterdir()}
  names = [sorted(p.name for p in (root / n / "checkpoints").iterdir()) for n in ("b", "alone")]
  assert names[0] == names[1]
  seen = experiment.load(str(root / "b"))
  assert (seen.seed, seen.optim.learning_rate) == (3, 3e-3)
  before = records(root / "a")
  together.train(built[:2], Console(file=io.StringIO()))  # nothing is left to do
  assert records(root / "a") == before


@pytest.mark.release
def test_a_signal_saves_all_runs_and_the_same_command_goes_on(tmp_path):
  root, settings = write_text(tmp_path), {"train__steps": 20, "train__eval_rows": 0}
  command = small_command(root, root / "unused", **settings)
  command[2:3] = ["resjax", "train_together"]
  command += [f"--run=workdir={root}/{name} seed={seed}" for seed, name in enumerate("ab")]
  process = start(command)
  wait_for(process, lambda: last_step(root / "b") > 3)
  process.send_signal(signal.SIGINT)
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 130 and "Traceback" not in output, output
  step = int(re.search(r"stopped after step (\d+), which is saved", output)[1])
  assert all((root / name / "checkpoints" / str(step)).is_dir() for name in "ab")
  assert f"resuming after step {step} of 20" in finish(command)
  finish(small_command(root, root / "alone", **settings, seed=1))
  assert_alike(records(root / "b"), records(root / "alone"))
