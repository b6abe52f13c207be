"""Compiles the training step ahead of time, for devices that need not be there."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping

import jax

from resjax.aot.memory import DoesNotFitError, Memory, count_arguments, measure, refusal
from resjax.base.hardware import find_target
from resjax.models import training_flops_per_token
from resjax.train import compile_lowered, program
from resjax.train.runs import Run


@dataclasses.dataclass(frozen=True)
class Flops:
  """Floating-point operations of a step on one device.

  Attributes:
    model: three forward passes by the model's formula, without what is recomputed.
    compiler: the compiler's own count, which has the body of each loop once; None if it has none.
  """

  model: float
  compiler: float | None


@dataclasses.dataclass(frozen=True)
class Report:
  """What is known of a compiled step.

  Attributes:
    memory: the memory that it needs on one device.
    flops: the operations of one device.
    bytes_accessed: memory traffic of one device by the compiler's count, which has the body of each
      loop once; None if the compiler has no count.
    lower_seconds: wall time to trace and lower the program.
    compile_seconds: wall time of the compiler.
    cpu_seconds: CPU time of both, over all threads.
    fingerprint: hash of the lowered program and the compiler options.
    text: the compiled program, as the compiler writes it (HLO).
  """

  memory: Memory
  flops: Flops
  bytes_accessed: float | None
  lower_seconds: float
  compile_seconds: float
  cpu_seconds: float
  fingerprint: str
  text: str = dataclasses.field(repr=False)


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
  costs = compiled.cost_analysis() or {}  # compilers for absent GPUs have none
  tokens = run.train.batch_size * run.data.seq_len / run.layout.mesh.size
  per_token = training_flops_per_token(run.decoder, programs.model.combinator, run.data.seq_len)
  return Report(
    memory=memory,
    flops=Flops(per_token * tokens, costs.get("flops")),
    bytes_accessed=costs.get("bytes accessed"),
    lower_seconds=lower_seconds,
    compile_seconds=compile_seconds,
    cpu_seconds=time.process_time() - cpu,
    fingerprint=fingerprint(lowered, programs.compiler_options),
    text=program_text(compiled),
  )


def program_text(compiled: jax.stages.Compiled) -> str:
  """Returns the text of a compiled program.

  Raises:
    ValueError: the compiler does not give it.
  """
  text = compiled.as_text()
  if text is None:
    raise ValueError("the compiler of this platform does not give the text of a program")
  return text


def fingerprint(lowered: jax.stages.Lowered, compiler_options: Mapping[str, str]) -> str:
  """Returns a hash of a program and its compiler options.

  It does not depend on the source lines that the program was traced from.
  """
  options = json.dumps(dict(compiler_options), sort_keys=True)
  return hashlib.sha256(f"{lowered.as_text()}\n{options}".encode()).hexdigest()[:16]
