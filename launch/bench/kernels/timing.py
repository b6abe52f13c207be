"""Times compiled functions on their device, and repeats and orders the measurements."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from launch.bench.kernels.cases import CompiledCase
from resjax.base import PyTree

# A sampler runs once and returns the seconds. Making one may compile, and need memory.
Sampler = Callable[[], float]
MakeSampler = Callable[[], Sampler]
_Name = TypeVar("_Name")

MIN_LOOP_SECONDS = 0.02
MAX_LOOPS = 4**8
EMPTY_RUNS = 5
CUPTI_RUNS = 5  # of a sample; to attach CUPTI takes longer than a run


def samplers(case: CompiledCase) -> dict[str, MakeSampler]:
  """Returns the ways to time a case on its platform, the best one first.

  `cupti`, on GPUs, adds up the times of the kernels that the driver has seen. `loop`, everywhere,
  runs the function many times inside one program.
  """
  found: dict[str, MakeSampler] = {}
  if jax.default_backend() == "gpu":
    found["cupti"] = partial(cupti, lambda: jax.block_until_ready(case.compiled(*case.args)))
  return found | {"loop": partial(_loop, case)}


def cupti(work: Callable[[], Any]) -> Sampler:
  """Returns a sampler of the time of all kernels that a function runs on a GPU, see below."""
  work()  # compiles, and tunes
  return lambda: sum(ms for _, ms in kernel_times(work, CUPTI_RUNS)) / 1e3 / CUPTI_RUNS


def kernel_times(work: Callable[[], Any], runs: int = 1) -> list[tuple[str, float]]:
  """Returns name and milliseconds of each kernel that a function launches on a GPU.

  It sees all kernels of the process, of JAX and of torch. What passes
  between them, the launches, does not count.

  Args:
    work: function that returns arrays of its last kernels, or when these are done.
    runs: how many times it runs.

  Raises:
    ValueError: there is no NVIDIA GPU.
    RuntimeError: CUPTI saw no kernel; it may not be permitted here.
  """
  if jax.default_backend() != "gpu":
    raise ValueError("CUPTI lists the kernels of NVIDIA GPUs alone, and JAX runs on none here")
  # JAX's own wrapper around these two takes functions of JAX alone.
  from jax._src.lib import mosaic_gpu

  extension = mosaic_gpu._mosaic_gpu_ext
  extension._cupti_init()
  try:
    for _ in range(runs):
      jax.block_until_ready(work())
  finally:
    seen = extension._cupti_get_timings(True)
  if not seen:
    raise RuntimeError("CUPTI saw no kernel")
  return seen


def wall(run: Callable[[], Any], runs: int = 1, cores: list[float] | None = None) -> Sampler:
  """Returns a sampler of the mean time of consecutive runs; there is one more before.

  Args:
    run: returns arrays, or when it is done.
    runs: how many of a sample; several hide their launches.
    cores: gets the mean seconds of all cores together from each sample.
  """

  def sample() -> float:
    start, used = time.perf_counter(), time.process_time()
    for _ in range(runs):
      done = run()
    jax.block_until_ready(done)
    if cores is not None:
      cores.append((time.process_time() - used) / runs)
    return (time.perf_counter() - start) / runs

  jax.block_until_ready(run())
  return sample


def _loop(case: CompiledCase) -> Sampler:
  """Returns a sampler of the time of k runs in one program, less that of no run, over k."""

  @jax.jit
  def repeated(count: int, args: tuple[Any, ...]) -> PyTree:
    def body(_: Any, carried: PyTree) -> PyTree:
      # Behind the barrier the arguments depend on the last results. XLA can therefore neither move
      # work out of the loop nor leave out a part of a result.
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


def interleaved(arms: Mapping[_Name, Sampler], repeats: int) -> dict[_Name, list[float]]:
  """Samples all arms in turn, forwards and then backwards, so that drift affects all alike."""
  found: dict[_Name, list[float]] = {name: [] for name in arms}
  for turn in range(repeats):
    names = list(arms) if turn % 2 == 0 else list(arms)[::-1]
    for name in names:
      found[name].append(arms[name]())
  return found


def summary(seconds: Sequence[float]) -> dict[str, Any]:
  """Returns median, quartiles and extremes in milliseconds."""
  low, lower, median, upper, high = np.percentile(seconds, [0, 25, 50, 75, 100]) * 1e3
  return {
    "median_ms": median,
    "quartiles_ms": [lower, upper],
    "range_ms": [low, high],
    "samples": len(seconds),
  }
