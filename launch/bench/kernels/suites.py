"""Runs the arms of a suite in turn, and reports time, traffic and error of each."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from launch.bench.kernels import cases, networks, reads, stream_reads, timing, torch_arms
from resjax.base import PyTree

COPY = "copy"
REFERENCE = "xla_no_stack"
OTHER_WORK = ("residual_norm",)  # arms that return something else than a read
MAX_COPIED = 8 * 10**9  # bytes in and out; more would need memory for the same bandwidth

Record = dict[str, Any]
_Prepared = tuple[dict[str, timing.MakeSampler], Record]
_Check = Callable[[PyTree], float]  # returns the error of what an arm has returned


@dataclasses.dataclass(frozen=True)
class Suite:
  """What a suite measures.

  Attributes:
    names: the names of the arms in JAX.
    arms: a function that returns them by name for a shape.
    torch_arms: the published kernels by name.
    directions: the keys of `cases.DIRECTIONS` that are measured.
  """

  names: tuple[str, ...]
  arms: Callable[[Any], dict[str, cases.Arm]]
  torch_arms: dict[str, torch_arms.TorchArm]
  directions: tuple[str, ...]


# Several sublayers keep much between the passes, so that both are measured as one program there.
SUITES = {
  "read": Suite(reads.NAMES, reads.arms, torch_arms.READ_ARMS, ("forward", "backward")),
  "streams": Suite(stream_reads.NAMES, stream_reads.arms, {}, ("forward", "backward")),
  "block": Suite(networks.NAMES, networks.arms, {}, ("forward", "both")),
  "network": Suite(networks.NAMES, networks.arms, torch_arms.NETWORK_ARMS, ("forward", "both")),
}


def arm_names() -> list[str]:
  """Returns the names of all arms but the copy, which always runs."""
  published = [name for suite in SUITES.values() for name in suite.torch_arms]
  return [*networks.NAMES, *published]


def run(name: str, shape: Any, chosen: Sequence[str], repeats: int) -> Iterator[list[Record]]:
  """Measures the chosen arms of one suite, and the copy, at one shape.

  Yields:
    For each direction one record per arm.
  """
  arms = SUITES[name].arms(shape)
  for direction in SUITES[name].directions:
    runners = _prepared(SUITES[name], shape, arms, chosen, direction)
    _sample(runners, repeats)
    _share_of_copy([runner.record for runner in runners])
    yield [{"suite": name, "shape": str(shape)} | runner.record for runner in runners]


def unmeasured(name: str, shape: Any, arm: str, direction: str, status: str) -> Record:
  """Returns the record of an arm that gave no result."""
  record = {"suite": name, "shape": str(shape), "arm": arm, "direction": direction}
  return record | {"status": status}


@dataclasses.dataclass
class _Runner:
  """One arm in one direction.

  Attributes:
    record: its results so far.
    samplers: the ways to time it, the best one first; empty if it cannot run.
  """

  record: Record
  samplers: dict[str, timing.MakeSampler]


def _prepared(
  suite: Suite, shape: Any, arms: Mapping[str, cases.Arm], chosen: Sequence[str], direction: str
) -> list[_Runner]:
  """Compiles the arms and checks what they return; the record of an arm that fails says why."""
  make, passes_of = cases.DIRECTIONS[direction]
  reference = arms[REFERENCE]
  least = passes_of(reference)
  like = jax.tree.leaves(reference.inputs)[-1]
  one_pass = like.nbytes
  want, _ = _attempt(lambda: _large_leaves(_outputs(make(reference)), like))

  def runner(
    name: str, passes: float, implementation: str, prepare: Callable[..., _Prepared], *args: Any
  ) -> _Runner:
    record: Record = {"arm": name, "direction": direction, "implementation": implementation}
    record |= {"passes": passes, "bytes": int(passes * one_pass)}
    done, problem = _attempt(prepare, *args)
    samplers, found = done or ({}, {})
    return _Runner(record | {"status": problem or "ok"} | found, samplers)

  copied = min(least, MAX_COPIED // one_pass)
  copy = partial(cases.copy_case, copied, one_pass)
  runners = [runner(COPY, copied, "XLA", _jax_arm, copy, None)]
  for name, arm in arms.items():
    if name in chosen:
      check = None if name in OTHER_WORK or want is None else partial(_error, want, like)
      make_case = partial(make, arm)
      runners.append(runner(name, passes_of(arm), arm.implementation, _jax_arm, make_case, check))
  for name, published in suite.torch_arms.items():
    if name in chosen:
      work = partial(torch_arms.run, published, shape, reference.inputs, reference.d_out, direction)
      check = None if want is None else partial(_error, want, like)
      args = published, shape, work, check
      runners.append(runner(name, least, published.package, _torch_arm, *args))
  return runners


def _attempt(fn: Callable[..., Any], *args: Any) -> tuple[Any, str | None]:
  """Returns what `fn` returns, or why it failed, so that the other arms go on."""
  try:
    return fn(*args), None
  except Exception as problem:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return None, f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300]


def _jax_arm(make_case: Callable[[], cases.CompiledCase], check: _Check | None) -> _Prepared:
  case = make_case()
  found: Record = {"peak_bytes": case.peak_bytes}
  if check:
    found["relative_l2_error"] = check(_outputs(case))
  return timing.samplers(case), found


def _torch_arm(
  arm: torch_arms.TorchArm,
  shape: Any,
  make_work: Callable[[], Callable[[], PyTree]],
  check: _Check | None,
) -> _Prepared:
  obstacle = arm.obstacle(shape)
  if obstacle:
    return {}, {"status": obstacle}
  work = make_work()
  found: Record = {"relative_l2_error": check(torch_arms.to_jax(work()))} if check else {}
  return torch_arms.samplers(work), found | {"peak_bytes": torch_arms.peak_bytes(work)}


def _outputs(case: cases.CompiledCase) -> PyTree:
  return jax.block_until_ready(case.compiled(*case.args))


def _large_leaves(tree: PyTree, like: jax.Array) -> list[jax.Array]:
  """Returns the output and the cotangents of sources; leaves out queries and gains."""
  return [leaf for leaf in jax.tree.leaves(tree) if leaf.size % like.size == 0]


def _error(want: list[jax.Array], like: jax.Array, got: PyTree) -> float:
  """Returns the largest relative L2 error of the output and the cotangents of sources."""

  @jax.jit
  def distance(x: jax.Array, y: jax.Array) -> jax.Array:
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return jnp.linalg.norm(x - y) / jnp.linalg.norm(y)

  pairs = zip(_large_leaves(got, like), want, strict=True)
  return max(float(distance(x.reshape(y.shape), y)) for x, y in pairs)


def _sample(runners: list[_Runner], repeats: int) -> None:
  """Times all arms in turn, each with the first of its samplers that works."""
  ready: dict[int, timing.Sampler] = {}
  for index, runner in enumerate(runners):
    problem: str | None = None
    for name, make in runner.samplers.items():
      sampler, problem = _attempt(_warm, make)
      if problem is None:
        runner.record |= {"timer": name}
        ready[index] = sampler
        break
    if problem:
      runner.record |= {"status": problem}
  for index, seconds in timing.interleaved(ready, repeats).items():
    runners[index].record |= timing.summary(seconds)


def _warm(make: timing.MakeSampler) -> timing.Sampler:
  """Returns a sampler that has run once, so that its programs are compiled."""
  sampler = make()
  sampler()
  return sampler


def _share_of_copy(records: list[Record]) -> None:
  """Adds bytes per second, and their share of what the copy has reached by the same timer."""
  for record in records:
    if "median_ms" in record:
      record["gb_per_s"] = record["bytes"] / record["median_ms"] / 1e6
  copy = records[0]
  for record in records:
    if "gb_per_s" in record and record["timer"] == copy.get("timer"):
      record["share_of_copy"] = record["gb_per_s"] / copy["gb_per_s"]
