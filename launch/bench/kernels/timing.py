"""Device time of compiled functions, and how to repeat and order measurements."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from launch.bench.kernels.cases import Case

# Takes one sample: seconds of one run. Making it may compile, and need memory.
Sampler = Callable[[], float]
MakeSampler = Callable[[], Sampler]

MIN_LOOP_SECONDS = 0.02
MAX_LOOPS = 4**8
EMPTY_RUNS = 5


def samplers(case: Case) -> dict[str, MakeSampler]:
  """Returns the ways to time a case on its platform, the one to report first.

  On a GPU `cupti` adds up the kernels that the driver saw; everywhere `loop` runs the function many
  times inside one program.
  """
  loop = {"loop": partial(_loop, case)}
  return {"cupti": partial(_cupti, case)} | loop if jax.default_backend() == "gpu" else loop


def _cupti(case: Case) -> Sampler:
  from jax.experimental.mosaic.gpu import profiler  # exists where JAX has its GPU plugin

  run = profiler.measure(case.compiled)

  def sample() -> float:
    _, milliseconds = run(*case.args)
    if milliseconds is None:
      raise RuntimeError("the profiler saw no kernel")
    return milliseconds / 1e3

  return sample


def _loop(case: Case) -> Sampler:
  """Times k runs in one program less the same program with no run, over k."""

  @jax.jit
  def repeated(count, args):
    def body(_, carried):
      # Behind the barrier the arguments depend on the last results: nothing is the same in every
      # round, and nothing of a result can be left out.
      args, _ = lax.optimization_barrier(carried)
      return args, case.fn(*args)

    results = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), case.compiled.out_info)
    return lax.fori_loop(0, count, body, (args, results))[1]

  def seconds(count: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(repeated(count, case.args))
    return time.perf_counter() - start

  seconds(0)  # compiles
  empty = min(seconds(0) for _ in range(EMPTY_RUNS))
  count = 1
  while count < MAX_LOOPS and seconds(count) - empty < MIN_LOOP_SECONDS:
    count *= 4
  return lambda: (seconds(count) - empty) / count


def interleaved(arms: Mapping[str, Sampler], repeats: int) -> dict[str, list[float]]:
  """Samples all arms in turn, forwards and backwards (ABBA), so that drift meets all alike."""
  found = {name: [] for name in arms}
  for turn in range(repeats):
    names = list(arms) if turn % 2 == 0 else list(arms)[::-1]
    for name in names:
      found[name].append(arms[name]())
  return found


def summary(seconds: Sequence[float]) -> dict[str, float]:
  """Returns median, quartiles and extremes in milliseconds."""
  low, lower, median, upper, high = np.percentile(seconds, [0, 25, 50, 75, 100]) * 1e3
  return {
    "median_ms": median,
    "quartiles_ms": [lower, upper],
    "range_ms": [low, high],
    "samples": len(seconds),
  }
