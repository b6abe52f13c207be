"""Runs the arms of a suite in turn and reports time, traffic and error of each."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from launch.bench.kernels import cases, networks, reads, timing, torch_arms
from resjax.typing import PyTree

COPY = "copy"
REFERENCE = "xla_no_stack"
OTHER_WORK = ("residual_norm",)  # returns something else than a read
CROSS_CHECKS = 3
MAX_COPIED = 8 * 10**9  # bytes in and out; more does not change the bandwidth, but needs memory

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Suite:
  """What a suite measures.

  Attributes:
    arms: shape -> arms in JAX by name.
    torch_arms: published kernels by name.
    directions: keys of `cases.DIRECTIONS`.
  """

  arms: Callable[[Any], dict[str, cases.Arm]]
  torch_arms: dict[str, torch_arms.TorchArm]
  directions: tuple[str, ...]


# Several sublayers keep much between forward and reverse pass: the two are one program there.
SUITES = {
  "read": Suite(reads.arms, torch_arms.READ_ARMS, ("forward", "backward")),
  "block": Suite(networks.arms, {}, ("forward", "both")),
  "network": Suite(networks.arms, torch_arms.NETWORK_ARMS, ("forward", "both")),
}


def arm_names() -> list[str]:
  """Returns the names of all arms; the copy is no choice."""
  published = [name for suite in SUITES.values() for name in suite.torch_arms]
  return [*networks.NAMES, *published]


def run(name: str, shape: Any, chosen: Sequence[str], repeats: int) -> list[Record]:
  """Measures the chosen arms of one suite at one shape, and the copy.

  Returns:
    One record per arm and direction.
  """
  arms = SUITES[name].arms(shape)
  records = []
  for direction in SUITES[name].directions:
    runners = _prepared(SUITES[name], shape, arms, chosen, direction)
    _sample(runners, repeats)
    _share_of_copy([runner.record for runner in runners])
    records += [runner.record for runner in runners]
  return [{"suite": name, "shape": str(shape)} | record for record in records]


@dataclasses.dataclass
class _Runner:
  """One arm in one direction: what is known of it, and how to sample it where it works."""

  record: Record
  samplers: dict[str, timing.MakeSampler]


def _prepared(suite, shape, arms, chosen, direction) -> list[_Runner]:
  """Compiles the arms, checks what they return, and says of each why it cannot run."""
  make, streams_of = cases.DIRECTIONS[direction]
  reference = arms[REFERENCE]
  least = streams_of(reference)
  like = jax.tree.leaves(reference.inputs)[-1]
  stream = like.nbytes
  want, _ = _attempt(lambda: _large_leaves(_outputs(make(reference)), like))

  def runner(name, streams, implementation, prepare, *args) -> _Runner:
    record = {"arm": name, "direction": direction, "implementation": implementation}
    record |= {"streams": streams, "bytes": int(streams * stream)}
    done, problem = _attempt(prepare, *args)
    samplers, found = done or ({}, {})
    return _Runner(record | {"status": problem or "ok"} | found, samplers)

  copied = min(least, MAX_COPIED // stream)
  copy = partial(cases.copy_case, copied, stream)
  runners = [runner(COPY, copied, "XLA", _jax_arm, copy, None)]
  for name, arm in arms.items():
    if name in chosen:
      check = None if name in OTHER_WORK or want is None else partial(_error, want, like)
      make_case = partial(make, arm)
      runners.append(runner(name, streams_of(arm), arm.implementation, _jax_arm, make_case, check))
  for name, arm in suite.torch_arms.items():
    if name in chosen:
      work = partial(torch_arms.run, arm, shape, reference.inputs, reference.d_out, direction)
      check = None if want is None else partial(_error, want, like)
      runners.append(runner(name, least, arm.package, _torch_arm, arm, work, check))
  return runners


def _attempt(fn: Callable[..., Any], *args: Any) -> tuple[Any, str | None]:
  """Returns what `fn` returns, or why it could not: an arm that fails must not end the others."""
  try:
    return fn(*args), None
  except Exception as problem:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return None, f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300]


def _jax_arm(
  make_case: Callable[[], cases.Case], check
) -> tuple[dict[str, timing.MakeSampler], Record]:
  case = make_case()
  found = {"peak_bytes": case.peak_bytes}
  if check:
    found["relative_l2_error"] = check(_outputs(case))
  return timing.samplers(case), found


def _torch_arm(arm, work, check) -> tuple[dict[str, timing.MakeSampler], Record]:
  obstacle = arm.obstacle()
  if obstacle:
    return {}, {"status": obstacle}
  work = work()
  found = {"relative_l2_error": check(torch_arms.to_jax(work()))} if check else {}
  samplers = {"cuda events": partial(torch_arms.sampler, work)}
  return samplers, found | {"peak_bytes": torch_arms.peak_bytes(work)}


def _outputs(case: cases.Case) -> PyTree:
  return jax.block_until_ready(case.compiled(*case.args))


def _large_leaves(tree: PyTree, like: jax.Array) -> list[jax.Array]:
  """Returns the output and source cotangents, not those of queries and gains."""
  return [leaf for leaf in jax.tree.leaves(tree) if leaf.size == like.size]


def _error(want: list[jax.Array], like: jax.Array, got: PyTree) -> float:
  """Returns the largest relative L2 error of the output and the source cotangents."""

  @jax.jit
  def distance(x, y):
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return jnp.linalg.norm(x - y) / jnp.linalg.norm(y)

  pairs = zip(_large_leaves(got, like), want, strict=True)
  return max(float(distance(x.reshape(y.shape), y)) for x, y in pairs)


def _sample(runners: list[_Runner], repeats: int) -> None:
  """Times all arms in turn with their first sampler, then each with its second one."""
  ready = {}
  for index, runner in enumerate(runners):
    for name, make in list(runner.samplers.items())[:1]:
      samples, problem = _attempt(_warm, make)
      runner.record |= {"timer": name} | ({"status": problem} if problem else {})
      ready |= {} if problem else {index: samples}
  for index, seconds in timing.interleaved(ready, repeats).items():
    runners[index].record |= timing.summary(seconds)
  for index in ready:
    for name, make in list(runners[index].samplers.items())[1:]:
      seconds, problem = _attempt(lambda make=make: timing.interleaved({0: make()}, CROSS_CHECKS))
      checked = problem or float(np.median(seconds[0])) * 1e3
      runners[index].record[f"{name}_ms"] = checked


def _warm(make: timing.MakeSampler) -> timing.Sampler:
  """Returns a sampler that ran once: what it needs is there."""
  sampler = make()
  sampler()
  return sampler


def _share_of_copy(records: list[Record]) -> None:
  """Adds bytes per second, and their share of what the copy reached."""
  for record in records:
    if "median_ms" in record:
      record["gb_per_s"] = record["bytes"] / record["median_ms"] / 1e6
  copied = records[0].get("gb_per_s")
  for record in records:
    if copied and "gb_per_s" in record:
      record["share_of_copy"] = record["gb_per_s"] / copied
