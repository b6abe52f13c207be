"""Times runs that train in one program beside the same runs one by one.

  resjax bench together --runs=5                    (D=128, as configs/tiny.py)
  resjax bench together --runs=2 --d_model=32 --rows=1 --seq_len=16    (for trying it out)

A step is a forward pass, a reverse pass and the optimizer on random tokens, of the model of
configs/tiny.py with the combinator and the width of the flags. A sample is the time of --steps
steps, with both kinds in turn in this process. The command prints one JSON object, and writes it to
--out: total tokens per second of both, and their ratio.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from configs import tiny
from launch.bench.kernels import timing
from launch.bench.report import write_report
from resjax.base import PyTree
from resjax.cli import command
from resjax.train import experiment, init_state, program, together
from resjax.train.runs import Run

_RUNS = flags.DEFINE_integer("runs", 5, "Number of runs.", lower_bound=2)
_RESIDUAL = flags.DEFINE_string("residual", "standard", "Combinator.")
_WIDTH = flags.DEFINE_integer("d_model", 128, "Width; heads are 32 wide.", lower_bound=32)
_ROWS = flags.DEFINE_integer("rows", 8, "Number of rows of a run's batch.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("seq_len", 256, "Number of tokens of a row.", lower_bound=2)
_STEPS = flags.DEFINE_integer("steps", 3, "Number of steps of a sample.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 10, "Samples of each kind.", lower_bound=1)
_TOLD = (_RUNS, _RESIDUAL, _WIDTH, _ROWS, _LENGTH)


def main() -> None:
  """Prints tokens per second of both kinds, and their ratio."""
  run = _run()
  single, both = program.build(run), together.build(run, _RUNS.value)
  state = init_state(single.model, single.optimizer, seed=0)
  batch = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, jnp.int32), single.batch)
  peaks = jnp.full(_RUNS.value, run.optim.learning_rate)
  copies = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.stack([x] * _RUNS.value), tree))
  batches = copies(batch)
  steps = {  # a step donates its state
    "together": _stepper(lambda s: both.train_step(s, batches, peaks)[0], copies(state), 1),
    "one by one": _stepper(lambda s: single.train_step(s, batch)[0], state, _RUNS.value),
  }
  samplers = {name: timing.wall(run, _STEPS.value) for name, run in steps.items()}
  found = timing.interleaved(samplers, _REPEATS.value)
  medians = {name: float(np.median(seconds)) for name, seconds in found.items()}
  tokens = _RUNS.value * _ROWS.value * _LENGTH.value
  report = {
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
    "flags": {flag.name: flag.value for flag in _TOLD},
    "tokens_per_second": {name: tokens / seconds for name, seconds in medians.items()},
    "together over one by one": medians["one by one"] / medians["together"],
  }
  write_report(report, "together")


def _run() -> Run:
  config, heads = tiny.get_config(), _WIDTH.value // 32
  config.model.update(d_model=32 * heads, mlp_dim=96 * heads, num_heads=heads, num_kv_heads=heads)
  config.model.residual.name, config.data.seq_len = _RESIDUAL.value, _LENGTH.value
  config.train.batch_size = _ROWS.value
  return experiment.build(config, jax.devices()[:1])


def _stepper(step: Callable[[PyTree], PyTree], state: PyTree, times: int) -> Callable[[], PyTree]:
  """Returns a function that takes as many steps as one of all runs needs."""

  def run() -> PyTree:
    nonlocal state
    for _ in range(times):
      state = step(state)
    return state

  return run


if __name__ == "__main__":
  command.run(main)
