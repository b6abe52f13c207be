"""The functions that are measured, their arguments, and the least memory traffic of each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from resjax.aot import memory_stats
from resjax.base import Array, PyTree

DTYPE = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Arm:
  """One way to do the work of a suite.

  Attributes:
    forward: the function of `inputs`.
    inputs: its arguments; all of the work depends on the last array.
    d_out: the cotangents of what `forward` returns.
    forward_passes: the least traffic of the forward pass, see arg_specs.py.
    backward_passes: the least traffic of the reverse pass.
    implementation: the name of the code that runs.
    num_constant: how many of the last inputs have no cotangent.
  """

  forward: Callable[..., PyTree]
  inputs: tuple[PyTree, ...]
  d_out: PyTree
  forward_passes: float
  backward_passes: float
  implementation: str = "XLA"
  num_constant: int = 0


@dataclasses.dataclass(frozen=True)
class CompiledCase:
  """A compiled function with its arguments.

  Attributes:
    fn: the function before it was compiled.
    args: its arguments; all of the work depends on the last leaf.
    compiled: `fn` compiled for these arguments.
  """

  fn: Callable[..., PyTree]
  args: tuple[Any, ...]
  compiled: jax.stages.Compiled

  @classmethod
  def of(cls, fn: Callable[..., PyTree], *args: Any) -> "CompiledCase":
    """Compiles `fn` for `args`."""
    return cls(fn, args, jax.jit(fn).lower(*args).compile())

  @property
  def peak_bytes(self) -> int:
    """The bytes of arguments, results and temporaries together, as the compiler tells them."""
    memory = memory_stats(self.compiled)
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return held + memory.temp_size_in_bytes - memory.alias_size_in_bytes


def forward_case(arm: Arm) -> CompiledCase:
  """Returns the forward pass alone, which keeps nothing for a reverse pass."""
  return CompiledCase.of(arm.forward, *arm.inputs)


def backward_case(arm: Arm) -> CompiledCase:
  """Returns the reverse pass alone, a function of the forward pass's residuals and `d_out`."""

  def keep(*inputs: PyTree) -> Callable[..., PyTree]:
    return _vjp(arm, inputs)[1]

  kept = jax.jit(keep)(*arm.inputs)
  return CompiledCase.of(lambda pullback, d_out: pullback(d_out), kept, arm.d_out)


def both_case(arm: Arm) -> CompiledCase:
  """Returns forward and reverse pass as one program, which chooses the residuals."""

  def both(inputs: tuple[PyTree, ...], d_out: PyTree) -> tuple[PyTree, PyTree]:
    out, pullback = _vjp(arm, inputs)
    return out, pullback(d_out)

  return CompiledCase.of(both, arm.inputs, arm.d_out)


def _vjp(arm: Arm, inputs: tuple[PyTree, ...]) -> tuple[PyTree, Callable[..., PyTree]]:
  first = len(inputs) - arm.num_constant
  return jax.vjp(lambda *moving: arm.forward(*moving, *inputs[first:]), *inputs[:first])


# For each direction a function that returns the case of an arm, and one that returns its traffic.
DIRECTIONS: dict[str, tuple[Callable[[Arm], CompiledCase], Callable[[Arm], float]]] = {
  "forward": (forward_case, lambda arm: arm.forward_passes),
  "backward": (backward_case, lambda arm: arm.backward_passes),
  "both": (both_case, lambda arm: arm.forward_passes + arm.backward_passes),
}


def random_arrays(seed: int, count: int, shape: tuple[int, ...], dtype: str = DTYPE) -> list[Array]:
  """Returns arrays of standard normal values, because equal values would draw less power."""
  make = jax.jit(lambda key: jax.random.normal(key, shape, jnp.dtype(dtype)))
  return [make(key) for key in jax.random.split(jax.random.key(seed), count)]


def copy_case(passes: float, pass_bytes: int) -> CompiledCase:
  """Returns a copy that moves as many bytes as an arm: half of them in, half of them out.

  It changes the sign, because XLA would drop a plain copy, or leave it to a copy engine.
  """
  size = int(passes * pass_bytes) // (2 * jnp.dtype(DTYPE).itemsize)
  return CompiledCase.of(jnp.negative, *random_arrays(7, 1, (size,)))
