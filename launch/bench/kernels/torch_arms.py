"""Runs published kernels through torch in the same process.

Nothing of theirs is imported before it runs. They share their arrays with JAX, and the timer.
"""

import dataclasses
import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

from launch.bench.kernels import timing
from launch.bench.kernels.arg_specs import NetworkShape, ReadShape
from launch.bench.kernels.reads import EPS
from resjax.base import Array, PyTree

WARM_UP, RUNS = 3, 10
_OFFSETS = 2**31  # elements that a signed offset of 32 bits reaches


@dataclasses.dataclass(frozen=True)
class TorchArm:
  """A published kernel.

  Attributes:
    package: the name of its package on PyPI.
    module: the module that has the function.
    function: the name of the function in it.
    call: calls the function with the shape and the tensors that `arrange` returns, and returns the
      output.
    arrange: turns the tensors of the JAX arms into those that get a gradient.
    split: turns these gradients into the cotangents of the JAX arms.
    wide_offsets: whether the kernel finds elements beyond the first 2^31 of its sources.
  """

  package: str
  module: str
  function: str
  call: Callable[..., Any]
  arrange: Callable[..., tuple]
  split: Callable[..., PyTree]
  wide_offsets: bool = True

  def obstacle(self, shape: Any) -> str | None:
    """Returns why the kernel cannot run a shape here, or None."""
    if not self.wide_offsets and isinstance(shape, ReadShape):
      elements = shape.num_tokens * shape.d_model * shape.num_sources
      if elements > _OFFSETS:
        return f"its offsets have 32 bits, too few for the {elements:,} elements of the sources"
    if find_spec("torch") is None or find_spec(self.module.split(".")[0]) is None:
      return f"not installed: {self.package} (the extra 'bench' has it)"
    import torch

    if not torch.cuda.is_available():
      return "torch finds no NVIDIA GPU"
    return None


def _fla_call(level: int) -> Callable[..., Any]:
  """Returns a call that keeps the mix for the reverse pass (level 0), or mixes it again (1)."""

  def call(function: Callable, shape: Any, query: Any, gain: Any, *sources: Any) -> Any:
    return function(query, sources, gain, rms_eps=EPS, checkpoint_level=level)

  return call


def _liger_call(function: Callable, shape: Any, query: Any, gain: Any, stacked: Any) -> Any:
  return function(stacked, query, gain, EPS)


def _stacked(query: Any, gain: Any, sources: tuple[Any, ...]) -> tuple[Any, Any, Any]:
  """Returns the sources as the stack that the kernel needs; making it is not timed."""
  import torch

  return query, gain, torch.stack([source[None] for source in sources])


def _flash_call(function: Any, shape: NetworkShape, queries: Any, x: Any) -> Any:
  from torch import nn

  layers = [nn.Identity() for _ in range(shape.num_sublayers)]
  return function.apply(x[None], queries, layers, shape.block_sublayers, EPS)[0]


def _fla(level: int) -> TorchArm:
  return TorchArm(
    "fla-core",
    "fla.ops.attnres",
    "fused_attnres",
    _fla_call(level),
    lambda query, gain, sources: (query, gain, *sources),
    lambda query, gain, *sources: (query, gain, sources),
  )


READ_ARMS = {
  "fla_checkpoint_0": _fla(0),
  "fla_checkpoint_1": _fla(1),
  "liger": TorchArm(
    "liger-kernel",
    "liger_kernel.transformers.functional",
    "liger_attn_res",
    _liger_call,
    _stacked,
    lambda query, gain, stacked: (query, gain, tuple(stacked[:, 0])),
    wide_offsets=False,
  ),
}
NETWORK_ARMS = {
  "flash_attn_res": TorchArm(
    "flash-attn-res",
    "flash_attn_res.experimental.autograd",
    "BlockAttentionResiduals",
    _flash_call,
    lambda queries, gains, sources: (queries, *sources),
    lambda queries, x: (queries, None, (x,)),
  ),
}


def run(
  arm: TorchArm, shape: Any, inputs: tuple[PyTree, ...], d_out: Array, direction: str
) -> Callable[[], PyTree]:
  """Returns a function without arguments that does the work of a case in torch.

  That function returns what the JAX case returns, as torch tensors: the output, the cotangents, or
  both.

  Args:
    arm: the kernel.
    shape: the shape that the suite measures.
    inputs: the inputs of the JAX arms.
    d_out: the cotangent of the output.
    direction: a key of `cases.DIRECTIONS`.
  """
  import torch

  function = getattr(importlib.import_module(arm.module), arm.function)
  tensors, gradient = jax.tree.map(to_torch, inputs), to_torch(d_out)
  leaves = [leaf.clone().requires_grad_() for leaf in arm.arrange(*tensors)]

  def forward() -> Any:
    return arm.call(function, shape, *leaves).view_as(gradient)

  def pull_back(out: Any, keep: bool = False) -> PyTree:
    gradients = torch.autograd.grad(out, leaves, gradient, retain_graph=keep)
    return arm.split(*gradients)

  def both() -> PyTree:
    out = forward()
    return out, pull_back(out)

  if direction == "both":
    return both
  if direction == "backward":
    out = forward()
    return lambda: pull_back(out, keep=True)
  return torch.no_grad()(forward)


def samplers(work: Callable[[], PyTree]) -> dict[str, timing.MakeSampler]:
  """Returns the ways to time the work of an arm, the one that JAX's arms are timed by first."""
  from torch import cuda

  def done() -> None:
    work()
    cuda.synchronize()

  def events() -> timing.Sampler:
    """Returns a sampler of seconds per run from CUDA events around several runs."""
    for _ in range(WARM_UP):  # compiles and tunes
      work()

    def sample() -> float:
      start, end = (cuda.Event(enable_timing=True) for _ in range(2))
      start.record()
      for _ in range(RUNS):
        work()
      end.record()
      end.synchronize()
      return start.elapsed_time(end) / 1e3 / RUNS

    return sample

  return {"cupti": lambda: timing.cupti(done), "cuda events": events}


def to_torch(array: Array) -> Any:
  """Returns a tensor that shares the memory of an array."""
  import torch

  return torch.from_dlpack(array)


def to_jax(tensors: PyTree) -> PyTree:
  """Returns arrays that share the memory of tensors; None stays."""
  return jax.tree.map(lambda tensor: jnp.from_dlpack(tensor.detach().contiguous()), tensors)


def peak_bytes(work: Callable[[], PyTree]) -> int:
  """Returns the most that torch held during a run, the arguments included."""
  from torch import cuda

  cuda.reset_peak_memory_stats()
  work()
  cuda.synchronize()
  return cuda.max_memory_allocated()
