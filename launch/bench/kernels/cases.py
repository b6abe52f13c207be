"""What is measured: functions with their arguments, and the traffic that each cannot avoid."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from resjax.typing import Array, PyTree

DTYPE = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Arm:
  """One way to do the work of a suite.

  Attributes:
    forward: function of `inputs`.
    inputs: arrays; the last one is an array that all of the work depends on.
    d_out: cotangents of what `forward` returns.
    forward_streams: least traffic, see arg_specs.py.
    backward_streams: the same of the reverse pass.
    implementation: which code runs.
    num_constant: how many of the last inputs have no cotangent.
  """

  forward: Callable[..., PyTree]
  inputs: tuple[PyTree, ...]
  d_out: PyTree
  forward_streams: float
  backward_streams: float
  implementation: str = "XLA"
  num_constant: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
  """A compiled function with its arguments.

  Attributes:
    fn: the function, not compiled.
    args: its arguments; the last leaf is an array that all of the work depends on.
    compiled: `fn` for these arguments.
  """

  fn: Callable[..., PyTree]
  args: tuple[Any, ...]
  compiled: jax.stages.Compiled

  @classmethod
  def of(cls, fn: Callable[..., PyTree], *args: Any) -> "Case":
    """Compiles `fn` for `args`."""
    return cls(fn, args, jax.jit(fn).lower(*args).compile())

  @property
  def peak_bytes(self) -> int:
    """What the program holds at once: arguments, results and temporaries, by the compiler."""
    memory = self.compiled.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return held + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def forward_case(arm: Arm) -> Case:
  """Returns the forward pass alone: nothing is kept for a reverse pass."""
  return Case.of(arm.forward, *arm.inputs)


def backward_case(arm: Arm) -> Case:
  """Returns the reverse pass alone: what the forward pass kept and the cotangent are arguments."""

  def keep(*inputs):
    return _vjp(arm, inputs)[1]

  return Case.of(lambda pullback, d_out: pullback(d_out), jax.jit(keep)(*arm.inputs), arm.d_out)


def both_case(arm: Arm) -> Case:
  """Returns forward and reverse pass as one program, which decides what is kept in between."""

  def both(inputs, d_out):
    out, pullback = _vjp(arm, inputs)
    return out, pullback(d_out)

  return Case.of(both, arm.inputs, arm.d_out)


def _vjp(arm: Arm, inputs: tuple[PyTree, ...]):
  first = len(inputs) - arm.num_constant
  return jax.vjp(lambda *moving: arm.forward(*moving, *inputs[first:]), *inputs[:first])


# Direction -> the case of an arm, and its least traffic.
DIRECTIONS = {
  "forward": (forward_case, lambda arm: arm.forward_streams),
  "backward": (backward_case, lambda arm: arm.backward_streams),
  "both": (both_case, lambda arm: arm.forward_streams + arm.backward_streams),
}


def random_arrays(seed: int, count: int, shape: tuple[int, ...], dtype: str = DTYPE) -> list[Array]:
  """Returns arrays of standard normal values; constant ones would draw less power."""
  make = jax.jit(lambda key: jax.random.normal(key, shape, jnp.dtype(dtype)))
  return [make(key) for key in jax.random.split(jax.random.key(seed), count)]


def copy_case(streams: float, stream_bytes: int) -> Case:
  """Reads and writes as many bytes as an arm, half each.

  The sign changes on the way; XLA would drop a copy that changes nothing, or leave it to a copy
  engine.
  """
  size = int(streams * stream_bytes) // (2 * jnp.dtype(DTYPE).itemsize)
  return Case.of(jnp.negative, *random_arrays(7, 1, (size,)))
