"""The step guard: what it leaves out, that nothing moves then, and when a run ends."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import tiny
from resjax.models.model_def import ModelDef
from resjax.train import experiment, gradients, guard, optim
from resjax.train.guard import GuardState
from resjax.train.runs.config import MAX_SPIKE_WINDOW, HealthConfig
from resjax.train.state import abstract_state, init_state
from resjax.train.step import make_train_step
from tests.helpers import layouts

V, T, B = 64, 16, 8
NONFINITE = HealthConfig(True, 128, 0.0, 10, 0.0)
SPIKES = dataclasses.replace(NONFINITE, spike_window=8, spike_sigma=3.0)
OFF = dataclasses.replace(NONFINITE, skip_nonfinite=False)


def judge_all(config, losses, norms=None):
  """Which of the steps are taken, and the state after the last one."""
  judge = jax.jit(guard.judge, static_argnums=0)
  state, taken = GuardState.zeros(), []
  for loss, norm in zip(losses, norms if norms is not None else losses, strict=True):
    take, state = judge(config, state, jnp.float32(loss), jnp.float32(norm))
    taken.append(bool(take))
  return taken, jax.device_get(state)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_left_out_and_counted(bad):
  losses, norms = [1, bad, bad, 1, 1, 1], [1, 1, 1, 1, bad, 1]
  taken, state = judge_all(NONFINITE, losses, norms)
  assert taken == [True, False, False, True, False, True]
  assert (state.skipped, state.in_a_row, state.taken) == (3, 0, 3)
  assert judge_all(NONFINITE, [1, bad, bad, bad])[1].in_a_row == 3
  assert all(judge_all(dataclasses.replace(NONFINITE, skip_nonfinite=False), losses)[0])


def update(norm=1.0, scale=10.0, bad_moments=0.0):
  return guard.Update(*map(jnp.float32, (norm, scale, bad_moments)))


@pytest.mark.parametrize(
  ("found", "taken"),
  [
    (update(), True),
    (update(norm=40.0), True),
    (update(norm=40.1), False),
    (update(norm=np.inf), False),
    (update(norm=np.nan), False),
    (update(scale=np.inf), False),
    (update(scale=np.nan), False),
    (update(bad_moments=1.0), False),
  ],
)
def test_updates_are_judged(found, taken):
  def problem(config, in_a_row=0):
    values = {"loss": 1.0, "grad_norm": 1.0, "skipped": in_a_row, "in_a_row": in_a_row}
    return guard.problem(config, **values, update=found)

  limited = dataclasses.replace(NONFINITE, max_update=4.0, max_skipped=3)
  assert (problem(limited) is None) == taken
  unlimited = dataclasses.replace(limited, max_update=0.0)
  assert (problem(unlimited) is None) == (taken or found.norm == np.float32(40.1))
  assert problem(limited, in_a_row=2) is None  # a skipped step leaves the state as it was


def test_an_update_is_measured(compiled):
  params = compiled.first.params
  leaves = jax.tree.leaves(params)
  new = jax.tree.map(lambda leaf: 4.0 * leaf, params)
  found = guard.measure(compiled.optimizer, params, new, compiled.first.opt_state)
  norm = np.sqrt(sum(np.square(leaf, dtype=np.float64).sum() for leaf in leaves))
  np.testing.assert_allclose([found.norm, found.scale], [3 * norm, norm], rtol=1e-5)
  assert found.bad_moments == 0
  # A model of zeros may begin.
  zeros = jax.tree.map(np.zeros_like, params)
  scale = guard.measure(compiled.optimizer, zeros, new, compiled.first.opt_state).scale
  np.testing.assert_allclose(scale, 0.02 * np.sqrt(sum(leaf.size for leaf in leaves)), rtol=1e-5)
  # One number of one moment of each parameter is enough, and each moment is looked at.
  moments, form = jax.tree.flatten(compiled.first.opt_state)
  shaped = [n for n, moment in enumerate(moments) if moment.ndim]
  assert len(shaped) == 2 * len(leaves)
  for place in shaped:
    bad = [np.array(moment) for moment in moments]
    bad[place].flat[-1] = np.inf
    state = jax.tree.unflatten(form, bad)
    assert guard.measure(compiled.optimizer, params, new, state).bad_moments == 1


@pytest.mark.parametrize("mesh", [None, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_one_device_with_another_copy_is_enough(mesh):
  layout = layouts.layout(devices=jax.devices() if mesh else jax.devices()[:1], **mesh or {})
  devices = list(layout.mesh.devices.flat)
  copies = [jax.device_put(jnp.float32(1.0), device) for device in devices]
  copies[-1] = jax.device_put(jnp.float32(np.nan), devices[-1])
  value = jax.make_array_from_single_device_arrays((), layout.sharding(), copies)
  found = jax.jit(lambda x: guard.agreed(layout, {"x": x}))(value)["x"]
  assert not any(np.isfinite(shard.data) for shard in found.addressable_shards)


def reference_taken(config, values):
  """The same rule over a Python list, in float64."""
  window, taken = [], []
  for value in values:
    past = window[-config.spike_window :]
    enough = 2 * len(past) >= config.spike_window
    limit = np.mean(past) + config.spike_sigma * np.std(past) if enough else np.inf
    taken.append(bool(value <= limit))
    if taken[-1]:
      window.append(value)
  return taken


@pytest.mark.parametrize("window", [5, 128, MAX_SPIKE_WINDOW])
def test_spikes_are_those_of_a_list_beyond_the_turn_of_the_ring(window):
  config = dataclasses.replace(SPIKES, spike_window=window, spike_sigma=3.0)
  values = np.random.default_rng(window).normal(3.0, 1.0, 2 * MAX_SPIKE_WINDOW)
  # A mean that falls: the window matters.
  values = np.float32(values + np.linspace(1.0, 0.0, len(values)))
  values[40::40] += 5.0
  expected = reference_taken(config, values.astype(np.float64))
  assert 20 < expected.count(False) < len(values) / 2
  assert expected.count(True) > MAX_SPIKE_WINDOW
  assert judge_all(config, values)[0] == expected


@pytest.mark.parametrize("which", ["loss", "gradient norm"])
def test_limit_is_mean_plus_sigma_std(which):
  past = [1.0, 3.0, 1.0, 3.0]  # mean 2, std 1: half of the window of 8
  for value, expected in ((4.99, True), (5.01, False), (-9.0, True)):
    values, constant = [*past, value], [1.0, 3.0, 1.0, 3.0, 2.0]
    order = (values, constant) if which == "loss" else (constant, values)
    assert judge_all(SPIKES, *order)[0] == [True] * 4 + [expected]
  # One less, and everything is taken; without the test, too.
  assert judge_all(SPIKES, [1.0, 3.0, 1.0, 1e9])[0] == [True] * 4
  assert judge_all(NONFINITE, [*past, 1e9])[0] == [True] * 5


@jax.custom_vjp
def scaled_cotangent(x, factor):
  return x


scaled_cotangent.defvjp(lambda x, factor: (x, factor), lambda factor, g: (g * factor, None))


def poisoned(loss_sums):
  """Loss sums of batches with two more entries: factors on the loss and on its gradient alone."""

  def sums_of(decoder, hidden, rows, *args):
    sums = loss_sums(decoder, hidden, rows, *args)
    nats = scaled_cotangent(sums.nats * rows["loss"][0], rows["gradient"][0])
    return dataclasses.replace(sums, nats=nats)

  return sums_of


class Trainer:
  """A small run by hand, whose batches can be poisoned."""

  def __init__(self, health, mesh=None, optimizer="adamw", microbatches=1):
    c = tiny.get_config()
    c.optim.name, c.model.residual.name, c.data.seq_len = optimizer, "standard", T
    c.model.update(num_layers=1, d_model=64, mlp_dim=256)
    c.train.update(batch_size=B, loss_chunk=T)
    run = experiment.build(c).with_vocab_size(V)
    config = dataclasses.replace(run.train, microbatches=microbatches)
    devices = jax.devices() if mesh else jax.devices()[:1]
    self.model = ModelDef(run.decoder, layouts.layout(devices=devices, **mesh or {}))
    self.optimizer = optim.make_optimizer(run.optim, 100)
    schedule = optim.schedule(run.optim, 100)
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(gradients, "loss_sums", poisoned(gradients.loss_sums))
      step = make_train_step(self.model, self.optimizer, schedule, config, health)
      abstract = abstract_state(self.model, self.optimizer)
      self.lowered = step.lower(abstract, self.rows(0))

  def start(self):
    self.step = self.lowered.compile()
    self.first = jax.device_get(init_state(self.model, self.optimizer, seed=0))
    self.restart()
    return self

  def restart(self):
    abstract = abstract_state(self.model, self.optimizer)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    self.state = jax.device_put(self.first, shardings)

  def rows(self, seed, loss=1.0, gradient=1.0):
    tokens = np.random.default_rng(seed).integers(0, V, (2, B, T), dtype=np.int32)
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (B, T))
    rows = {"inputs": tokens[0], "targets": tokens[1], "positions": positions}
    rows["segment_ids"] = np.ones((B, T), np.int32)
    factors = {"loss": np.full(B, loss, np.float32), "gradient": np.full(B, gradient, np.float32)}
    placed = jax.device_put(rows, self.model.layout.sharding("batch", "tokens"))
    return placed | jax.device_put(factors, self.model.layout.sharding("batch"))

  def run(self, *batches):
    """Returns the metrics of the steps."""
    found = []
    for rows in batches:
      self.state, metrics = self.step(self.state, rows)
      found.append(jax.device_get(metrics))
    return found


@pytest.fixture(scope="module")
def compiled():
  return Trainer(SPIKES).start()


@pytest.fixture
def trainer(compiled):
  compiled.restart()
  return compiled


def bits(state):
  """What a skipped step may not touch."""
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((state.params, state.opt_state))]


def compare_with_a_run_that_never_saw_the_bad_batches(trainer):
  bad = {1: {"loss": np.nan}, 3: {"gradient": np.inf}, 4: {"gradient": np.nan}}
  batches = [trainer.rows(n, **bad.get(n, {})) for n in range(6)]
  metrics = []
  for n, rows in enumerate(batches):
    before = bits(trainer.state)
    metrics += trainer.run(rows)
    assert (bits(trainer.state) == before) == (n in bad)
  with_bad = trainer.state
  trainer.restart()
  reference = trainer.run(*[rows for n, rows in enumerate(batches) if n not in bad])
  assert bits(with_bad) == bits(trainer.state)
  assert [m["skipped"] for m in metrics] == [0, 1, 0, 1, 1, 0]
  assert [m["skipped_total"] for m in metrics] == [0, 1, 1, 2, 3, 3]
  assert [m["skipped_in_a_row"] for m in metrics] == [0, 1, 0, 1, 2, 0]
  rates = [m["learning_rate"] for m in metrics if not m["skipped"]]
  assert rates == [m["learning_rate"] for m in reference]
  # The step counts the data that were used.
  assert (int(with_bad.step), int(trainer.state.step)) == (6, 3)


def test_a_run_with_bad_batches_is_the_run_that_never_saw_them(trainer):
  compare_with_a_run_that_never_saw_the_bad_batches(trainer)


@pytest.mark.slow
@pytest.mark.parametrize(
  "changes",
  [{"optimizer": "muon"}, {"microbatches": 2}, {"mesh": {"data": 2, "fsdp": 2, "tensor": 2}}],
  ids=["muon", "microbatches", "sharded"],
)
def test_so_it_is_whatever_the_step(changes):
  compare_with_a_run_that_never_saw_the_bad_batches(Trainer(NONFINITE, **changes).start())


def test_spikes_leave_the_state_alone(trainer):
  trainer.run(*[trainer.rows(n) for n in range(4)])
  before = bits(trainer.state)
  for poison in ({"loss": 1.5, "gradient": 1 / 1.5}, {"gradient": 50.0}):
    (metrics,) = trainer.run(trainer.rows(0, **poison))
    assert metrics["skipped"] == 1
    assert bits(trainer.state) == before
  (metrics,) = trainer.run(trainer.rows(0))
  assert metrics["skipped"] == 0
  assert bits(trainer.state) != before


def test_negative_zeros_and_subnormals_stay(trainer):
  def odd(leaf):
    values = np.full(leaf.shape, -0.0, np.float32)
    values[..., 0] = 1e-42
    return jax.device_put(values, leaf.sharding)

  params = jax.tree.map(odd, trainer.state.params)
  trainer.state = dataclasses.replace(trainer.state, params=params)
  before = bits(trainer.state)
  assert np.float32(1e-42).tobytes() in before[0]
  trainer.run(trainer.rows(0, gradient=np.nan))
  assert bits(trainer.state) == before


def test_without_a_guard_the_step_is_the_plain_one():
  plain, off, on = (Trainer(health).lowered.as_text() for health in (None, OFF, NONFINITE))
  assert plain == off
  assert plain != on


@pytest.mark.slow
def test_the_guard_keeps_no_second_state(compiled):
  plain = Trainer(None).start().step.memory_analysis()
  guarded = compiled.step.memory_analysis()
  state = sum(leaf.nbytes for leaf in jax.tree.leaves(compiled.state))
  assert guarded.alias_size_in_bytes == plain.alias_size_in_bytes > 0.9 * state
  assert guarded.temp_size_in_bytes - plain.temp_size_in_bytes < state / 2


def problem(config=NONFINITE, **values):
  values = {"loss": 2.0, "grad_norm": 1.0, "skipped": 0, "in_a_row": 0, **values}
  return guard.problem(config, **values)


def test_a_message_says_what_is_wrong_with_an_update():
  config = dataclasses.replace(NONFINITE, max_update=4.0)
  bad = {"skipped": 10, "in_a_row": 10}
  large = problem(config, **bad, update=guard.Update(1e24, 12.0, 0.0))
  assert "an update of norm 1e+24 of parameters of norm 12 and is skipped" in large
  lower = "lower config.optim.learning_rate"
  assert large.endswith(lower)  # a limit that lets this pass would ruin the run
  assert problem(config, update=guard.Update(np.inf, 12.0, 0.0)).endswith(lower)
  unusual = problem(config, update=guard.Update(60.0, 12.0, 0.0))
  assert unusual.endswith(f"{lower}, or raise config.health.max_update=4")
  for found, words in (
    (guard.Update(1.0, np.inf, 0.0), "parameters that are not finite"),
    (guard.Update(1.0, 12.0, 3.0), "moments of the optimizer that are not finite"),
  ):
    message = problem(config, **bad, update=found)
    assert words in message and "the same command needs no change" in message
  spike = problem(SPIKES, **bad, update=guard.Update(1.0, 12.0, 0.0))
  assert "config.health.max_skipped=10 or config.health.spike_sigma=3" in spike


def test_the_run_ends_after_too_many_in_a_row():
  assert problem() is None
  assert problem(loss=np.nan, skipped=30, in_a_row=9) is None
  message = problem(loss=np.nan, skipped=12, in_a_row=10)
  assert "\n" not in message
  for words in ("loss nan", "gradient norm 1", "number 10 in a row, 12 in all",
                "config.health.max_skipped=10"):  # fmt: skip
    assert words in message
  found = problem(OFF, grad_norm=np.inf)
  assert "loss 2 and gradient norm inf" in found and "config.health.skip_nonfinite=True" in found


@pytest.mark.parametrize(
  ("change", "words"),
  [
    ({"spike_window": 1}, "config.health.spike_window=1 must be finite and in 2..1024"),
    ({"spike_window": 1025}, "in 2..1024"),
    ({"spike_sigma": -1.0}, "config.health.spike_sigma=-1.0 must be .*0 .no test. or more"),
    ({"spike_sigma": np.nan}, "config.health.spike_sigma=nan must be finite"),
    ({"max_skipped": 0}, "config.health.max_skipped=0 must be .*at least 1"),
    ({"max_update": -1.0}, "config.health.max_update=-1.0 must be .*0 .no test. or more"),
    ({"watchdog_seconds": -5.0}, "config.health.watchdog_seconds=-5.0"),
  ],
)
def test_settings_out_of_range(change, words):
  with pytest.raises(ValueError, match=words):
    dataclasses.replace(NONFINITE, **change)
