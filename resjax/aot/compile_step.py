"""Compiles the training step ahead of time, for devices that need not be there."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping

import jax

from resjax.aot import hlo
from resjax.aot.collectives import Collective, collectives
from resjax.aot.depth_floor import Floor, depth_floor
from resjax.aot.hlo_calls import unknown_loops
from resjax.aot.matrix_flops import matrix_flops
from resjax.aot.memory import DoesNotFitError, Memory, count_arguments, measure, refusal
from resjax.aot.passes import Passes, count_passes
from resjax.base.hardware import find_target
from resjax.models import training_flops_per_token
from resjax.train import compile_lowered, program
from resjax.train.runs import Run


@dataclasses.dataclass(frozen=True)
class Flops:
  """Floating-point operations of a step on one device.

  Attributes:
    model: three forward passes by the model's formula, without what is recomputed.
    matrices: the matrix products of the compiled program, as often as loops run them and with what
      is recomputed; a kernel counts with its own cost estimate (splash attention: nothing).
    compiler: the compiler's own count, which has the body of each loop once; None if it has none.
  """

  model: float
  matrices: float
  compiler: float | None


@dataclasses.dataclass(frozen=True)
class Report:
  """What is known of a compiled step.

  Attributes:
    memory: the memory that it needs on one device.
    flops: the operations of one device.
    bytes_accessed: memory traffic of one device by the compiler's count, which has the body of each
      loop once; None if the compiler has no count.
    collectives: what devices exchange.
    passes: memory traffic of one device by our own count, which has loops times their trips.
    floor: the least of that traffic that depth mixing needs; None without a formula for it.
    unknown_loops: the loops that count once because their trips could not be read.
    lower_seconds: wall time to trace and lower the program.
    compile_seconds: wall time of the compiler.
    cpu_seconds: CPU time of both, over all threads.
    fingerprint: hash of the lowered program and the compiler options.
  """

  memory: Memory
  flops: Flops
  bytes_accessed: float | None
  collectives: tuple[Collective, ...]
  passes: Passes
  floor: Floor | None
  unknown_loops: tuple[str, ...]
  lower_seconds: float
  compile_seconds: float
  cpu_seconds: float
  fingerprint: str


def compile_step(run: Run) -> Report:
  """Compiles the training step of a run and reads its memory, FLOPs and traffic.

  Args:
    run: the run; the devices of its layout may be descriptions of absent ones.

  Raises:
    DoesNotFitError: a device has too little memory.
    ValueError: the compiler does not know an option of config.train.compiler_options, or cuDNN is
      needed and not installed.
  """
  programs = program.build(run)
  wall, cpu = time.perf_counter(), time.process_time()
  try:
    lowered = programs.lower_train_step()
  except RuntimeError as error:
    if "cuDNN" not in str(error):
      raise
    raise ValueError(
      "attention on GPUs takes cuDNN, which is not installed; give --config.model.attention=xla, "
      "or pip install nvidia-cudnn-cu13"
    ) from None
  lower_seconds = time.perf_counter() - wall
  arguments = count_arguments(programs)
  try:
    compiled = compile_lowered(lowered)
  except jax.errors.JaxRuntimeError as error:
    sizes = refusal(str(error))
    if sizes is None:
      raise
    raise DoesNotFitError(arguments, *sizes) from None
  compile_seconds = time.perf_counter() - wall - lower_seconds
  memory = measure(arguments, compiled)
  gpu = find_target(run.layout.device.device_kind)
  if gpu is not None and memory.total > gpu.memory_bytes:  # the compiler for GPUs does not refuse
    raise DoesNotFitError(arguments, memory.total, gpu.memory_bytes)
  module = hlo.parse(hlo.text_of(compiled))
  costs = compiled.cost_analysis() or {}  # compilers for absent GPUs have none
  tokens = run.train.batch_size * run.data.seq_len / run.layout.mesh.size
  per_token = training_flops_per_token(run.decoder, programs.model.combinator, run.data.seq_len)
  return Report(
    memory=memory,
    flops=Flops(per_token * tokens, matrix_flops(module), costs.get("flops")),
    bytes_accessed=costs.get("bytes accessed"),
    collectives=tuple(collectives(module, run.layout.mesh)),
    passes=count_passes(module, run),
    floor=depth_floor(programs.model.combinator, run.decoder.remat, run.decoder.dtype),
    unknown_loops=tuple(unknown_loops(module)),
    lower_seconds=lower_seconds,
    compile_seconds=compile_seconds,
    cpu_seconds=time.process_time() - cpu,
    fingerprint=fingerprint(lowered, programs.compiler_options),
  )


def fingerprint(lowered: jax.stages.Lowered, compiler_options: Mapping[str, str]) -> str:
  """Returns a hash of a program and its compiler options.

  It does not depend on the source lines that the program was traced from.
  """
  options = json.dumps(dict(compiler_options), sort_keys=True)
  return hashlib.sha256(f"{lowered.as_text()}\n{options}".encode()).hexdigest()[:16]
