"""Compiles the GPU kernels to machine code, for GPUs that need not be there.

Registers, spilled bytes and shared memory of every kernel are read off. Neither XLA nor ptxas
checks whether the programs that should run at a time find as many registers and as much shared
memory as they take: the launch would fail, or fewer programs would run at a time.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from launch.bench.kernels import gpu_gated_kernels, gpu_stream_kernels
from resjax.aot import absent_devices
from resjax.base.hardware import GPU_DRIVER_BYTES, GPU_TARGETS
from resjax.base.sharding import Layout, MeshConfig, make_mesh
from resjax.kernels.depth_attention import OPERATIONS, MergeOperands, Operands, Read
from resjax.kernels.depth_attention.mosaic_gpu import obstacles
from resjax.kernels.mosaic_gpu import GpuTiles

KINDS = ("direct", "block", "merge", "streams", "gated")
DIRECTIONS = ("forward", "backward")
_OF_STREAMS = {"streams": gpu_stream_kernels, "gated": gpu_gated_kernels}
# Forms of a kind: fused, banked, threaded. In a decoder under a scan all three hold.
_FORMS = {
  "direct": ((False, False, False), (False, False, True), (True, True, True)),
  "block": ((False, False, False), (False, False, True), (False, True, True)),
  "merge": ((False, False, True), (True, False, True)),
  "streams": ((True, False, False),),
  "gated": ((True, False, False),),
}
_EPS = 1e-6
_REGISTERS = 65536  # of a streaming multiprocessor
_GRANULE = 8  # a thread gets a multiple of so many registers
_THREADS = 128  # of a program
_WIDE = 4096  # the largest width at which nothing is spilled


@dataclasses.dataclass(frozen=True)
class KernelCase:
  """A kernel to compile.

  Attributes:
    kind: `direct` for a direct read, `block` for phase 1 of a depth block, `merge` for phase 2;
      `streams` for a read of residual streams, `gated` for one through gates.
    name: `forward` or `backward`; of streams one of the `NAMES` of their module.
    width: D.
    fused: whether a direct read or a merge has the residual add and the following norm.
    banked: whether all sources but the last are in a bank, of which some may not count.
    threaded: whether sources are threaded; a merge's always are.
    num_slots: N, of a direct read; phase 1 has one less.
    num_reads: S, the reads of a depth block.
    num_tokens: T.
    dtype: the dtype of the sources.
    num_streams: R.
  """

  kind: str
  name: str
  width: int
  fused: bool
  banked: bool
  threaded: bool
  num_slots: int = 8
  num_reads: int = 8
  num_tokens: int = 1001
  dtype: str = "bfloat16"
  num_streams: int = 4

  def __str__(self) -> str:
    form = [name for name in ("fused", "banked", "threaded") if getattr(self, name)]
    return f"{self.kind} {self.name} {' '.join(form) or 'plain'}, D={self.width}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What a kernel takes of a GPU.

  Attributes:
    case: the kernel.
    gpu: key of `GPU_TARGETS`.
    registers: of a thread.
    spilled: the bytes that a thread stores to memory and loads again for want of registers.
    shared: bytes of shared memory of a program, as the kernel asks for them.
    programs: number of programs that are meant to run on a multiprocessor at a time.
    seconds: how long the compilation took.
  """

  case: KernelCase
  gpu: str
  registers: int
  spilled: int
  shared: int
  programs: int
  seconds: float

  def problems(self) -> list[str]:
    """Returns the faults of the compiled kernel, in words."""
    chip, found = GPU_TARGETS[self.gpu], []
    most = most_spilled(self.case.width)
    if self.spilled > most:
      found.append(f"spills {self.spilled} bytes, {most} are allowed")
    if self.shared > chip.program_bytes:
      found.append(f"takes {self.shared} bytes of shared memory of {chip.program_bytes}")
    room = chip.program_bytes + GPU_DRIVER_BYTES
    if self.programs * (self.shared + GPU_DRIVER_BYTES) > room:
      found.append(f"{self.programs} programs of {self.shared} bytes do not share {room} bytes")
    held = -(-self.registers // _GRANULE) * _GRANULE * _THREADS
    if self.programs * held > _REGISTERS:
      found.append(f"{self.programs} programs of {self.registers} registers do not run at a time")
    return found


def most_spilled(width: int) -> int:
  """Returns the bytes that a kernel may spill: none up to a width of 4096."""
  return 0 if width <= _WIDE else 512


def cases(widths: Sequence[int], kinds: Sequence[str] = KINDS) -> Iterator[KernelCase]:
  """Yields all kernels of every kind in several forms, at every width.

  A forward pass is the same kernel whether sources are threaded or not.
  """
  for width in widths:
    for kind in kinds:
      for name in _OF_STREAMS[kind].NAMES if kind in _OF_STREAMS else DIRECTIONS:
        for fused, banked, threaded in _FORMS[kind]:
          if name != "forward" or kind == "merge" or banked or not threaded:
            yield KernelCase(kind, name, width, fused, banked, threaded)


def compile_kernel(gpu: str, case: KernelCase) -> Compiled | str:
  """Compiles a kernel for an absent GPU.

  Args:
    gpu: key of `GPU_TARGETS`.
    case: the kernel.

  Returns:
    What it takes; or why the kernels say that they cannot run there.
  """
  device = absent_devices.describe(f"{gpu}-1").devices[0]
  layout = Layout(make_mesh(MeshConfig(data=1), [device]))
  whole = SingleDeviceSharding(device)

  def array(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=whole)

  prepared = _prepared_streams if case.kind in _OF_STREAMS else _prepared
  found = prepared(case, layout, array)
  if isinstance(found, str):
    return found
  tiles, run, args = found
  placed = jax.tree.map(lambda x: array(*x.shape, dtype=x.dtype), args)
  start = time.perf_counter()
  lowered = jax.jit(run).lower(*placed)
  report = _ptxas_report(lowered.compile)
  seconds = time.perf_counter() - start
  if "registers" not in report:
    raise ValueError(f"{case}: ptxas reported nothing; has a cache already held the kernel?")
  return Compiled(
    case,
    gpu,
    registers=max(int(n) for n in re.findall(r"Used (\d+) registers", report)),
    spilled=max(
      int(stores) + int(loads)
      for stores, loads in re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    ),
    shared=tiles.shared_bytes(array(case.num_tokens, case.width, dtype=case.dtype)),
    programs=tiles.programs_per_sm,
    seconds=seconds,
  )


def _ptxas_report(compile: Callable[[], Any]) -> str:
  """Returns what ptxas prints about the kernels that a call compiles.

  ptxas prints to the standard output of the process, below Python's own.
  """
  sys.stdout.flush()
  kept = os.dup(1)
  before = os.environ.get("MOSAIC_GPU_DUMP_PTXAS")
  os.environ["MOSAIC_GPU_DUMP_PTXAS"] = "1"
  with tempfile.TemporaryFile("w+b") as captured:
    os.dup2(captured.fileno(), 1)
    try:
      compile()
    finally:
      os.dup2(kept, 1)
      os.close(kept)
      if before is None:
        del os.environ["MOSAIC_GPU_DUMP_PTXAS"]
    captured.seek(0)
    return captured.read().decode(errors="replace")


def _prepared(
  case: KernelCase, layout: Layout, array: Callable
) -> str | tuple[GpuTiles, Callable, tuple]:
  """Returns a kernel of depth reads, see `gpu_stream_kernels.prepared`."""
  read = Read(1, _EPS, case.fused, case.threaded, implementation="mosaic_gpu", layout=layout)
  operands = _merge_operands(case, array) if case.kind == "merge" else _operands(case, array)
  obstacle = getattr(obstacles, case.kind)(read, operands)
  if obstacle:
    return obstacle
  tiles = OPERATIONS[case.kind].load("mosaic_gpu", case.name).tiles_of(read, operands)
  return tiles, *_call(read, case, operands)


def _prepared_streams(
  case: KernelCase, layout: Layout, array: Callable
) -> str | tuple[GpuTiles, Callable, tuple]:
  sizes = case.num_streams, case.num_tokens, case.width
  return _OF_STREAMS[case.kind].prepared(case.name, sizes, case.dtype, layout, array)


def _operands(case: KernelCase, array: Callable) -> Operands:
  block = case.kind == "block"
  slots = case.num_slots - block
  source, row = array(case.num_tokens, case.width, dtype=case.dtype), array(case.width)
  banked = slots - 1 if case.banked else 0
  bank = array(banked, case.num_tokens, case.width, dtype=case.dtype) if banked else None
  query = array(case.num_reads, case.width) if block else row
  addend, scale = (source, row) if case.fused else (None, None)
  counts = array(2, dtype=jnp.int32)
  return Operands(bank, (source,) * (slots - banked), counts, query, addend, scale)


def _merge_operands(case: KernelCase, array: Callable) -> MergeOperands:
  source, row = array(case.num_tokens, case.width, dtype=case.dtype), array(case.width)
  reads = array(case.num_reads, case.num_tokens, case.width, dtype=case.dtype)
  lse, counts = array(case.num_reads, case.num_tokens), array(2, dtype=jnp.int32)
  addend, scale = (source, row) if case.fused else (None, None)
  return MergeOperands(reads, lse, source, counts, row, addend, scale)


def _call(read: Read, case: KernelCase, operands: Any) -> tuple[Callable, tuple]:
  """Returns the function of a kernel, and its arguments."""
  load = functools.partial(OPERATIONS[case.kind].load, "mosaic_gpu")
  forward = functools.partial(load("forward").forward, read)
  if case.name == "forward":
    return forward, (operands,)
  backward = functools.partial(load("backward").backward, read)
  results = jax.eval_shape(forward, operands)
  if case.kind == "merge":
    out, _, stats = results
    reads = operands.out, operands.lse
    operands = operands._replace(out=None, lse=None, addend=None)
    return backward, (operands, out, stats, out, out, reads)
  threaded = (operands.bank, operands.recent) if read.threaded else None
  if case.kind == "block":
    out, stats = results
    return backward, (operands, stats, out, stats.lse, threaded)
  out, _, stats = results
  return backward, (operands._replace(addend=None), stats, out, threaded)


def main(out: Path, chips: Sequence[str], widths: Sequence[int]) -> None:
  """Compiles the kernels for GPUs, prints one line for each, and writes gpu_compile_GPU.json.

  A process compiles for one GPU, because JAX keeps to the generation of the first one.

  Raises:
    ValueError: a chip is no GPU, or something is wrong with a kernel.
  """
  unknown = [chip for chip in chips if chip not in GPU_TARGETS]
  if unknown:
    raise ValueError(f"chip {unknown[0]!r} is no GPU; allowed: {', '.join(GPU_TARGETS)}")
  if len(chips) == 1:
    _compile_all(out, chips[0], widths)
    return
  command = [sys.executable, "-m", "resjax", "bench", "kernels", "--gpu-compile", f"--out={out}"]
  command.append(f"--widths={','.join(map(str, widths))}")
  failed = [chip for chip in chips if subprocess.call([*command, f"--chips={chip}"])]
  if failed:
    raise ValueError(f"kernels for {', '.join(failed)} are not as they should be, see above")


def _compile_all(out: Path, gpu: str, widths: Sequence[int]) -> None:
  print(f"for {GPU_TARGETS[gpu].device_kind}, JAX {jax.__version__}", flush=True)
  records, failed = [], 0
  for case in cases(widths):
    record, problems, line = _checked(gpu, case)
    print(f"{'FAIL' if problems else 'ok  '} {case!s:48} {line}", *problems, flush=True)
    failed += bool(problems)
    records.append(record | {"problems": problems})
    out.mkdir(parents=True, exist_ok=True)
    content = {"gpu": gpu, "jax": jax.__version__, "records": records}
    (out / f"gpu_compile_{gpu}.json").write_text(json.dumps(content, indent=1))
  if failed:
    raise ValueError(f"{failed} of {len(records)} kernels are not as they should be, see above")


def _checked(gpu: str, case: KernelCase) -> tuple[dict, list[str], str]:
  """Returns the record of a kernel, its faults, and a line about it."""
  found = compile_kernel(gpu, case)
  if isinstance(found, str):
    return {"case": dataclasses.asdict(case), "refused": found}, [], f"refused: {found}"
  line = (
    f"{found.registers} registers, {found.spilled} bytes spilled, {found.shared / 1024:.0f} KiB "
    f"shared, {found.programs} programs, {found.seconds:.1f} s"
  )
  return dataclasses.asdict(found), found.problems(), line
