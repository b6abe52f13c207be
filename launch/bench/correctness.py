"""Kernels for NVIDIA GPUs against the reference in float64, case by case.

Each case computes outputs and gradients of one operation at one shape. What does not count holds
NaN. The compiled program runs several times: other bits mean a race.
"""

import dataclasses
import functools
import importlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from launch.bench import gated_reads
from launch.bench.arms import OK
from resjax.base import Array, PyTree
from resjax.combinators import SinkhornGates
from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention,
  depth_attention_block,
  depth_attention_merge,
)
from resjax.kernels.streams import Pending, stream_read

# Largest relative L2 errors of outputs and of gradients.
LIMITS = {"float32": (1e-5, 1e-4), "float16": (4e-3, 6e-3), "bfloat16": (6e-3, 1.2e-2)}
_STREAMS = ("mhc", "fixed", "gated")
SMALL = 5  # tokens of a case that the interpreter can run
_EPS = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
  """One operation at one shape.

  Attributes:
    kind: `direct`, `block` or `merge`; of residual streams `mhc`, whose streams have one φ
      together, `fixed`, which has none, or `gated`, a read through gates.
    tokens: T.
    width: D.
    dtype: the dtype of the sources.
    banked: number of sources in a bank.
    recent: number of other sources; of residual streams R.
    valid: how many slots of the bank count.
    reads: S, of a depth block.
    adds: whether there is an addend.
    norm: whether a norm follows.
    threaded: whether the sources are returned.
    last: whether the last source, of a merge the running sum, counts.
  """

  kind: str
  tokens: int = 37
  width: int = 384
  dtype: str = "float32"
  banked: int = 0
  recent: int = 3
  valid: int = 0
  reads: int = 3
  adds: bool = False
  norm: bool = False
  threaded: bool = False
  last: bool = True

  def __str__(self) -> str:
    words = [self.kind, f"T={self.tokens}", f"D={self.width}", self.dtype]
    if self.kind in _STREAMS:
      words.append(f"R={self.recent}")
    elif self.kind != "merge":
      words += [f"N={self.banked}+{self.recent}", f"valid={self.valid}"]
    if self.kind in ("block", "merge"):
      words.append(f"S={self.reads}")
    words += [n for n in ("adds", "norm", "threaded") if getattr(self, n)]
    return " ".join(words if self.last else [*words, "without the last"])


def cases() -> list[Case]:
  """Returns all cases: every kernel at two shapes, then the smallest first.

  Of those the first that fails is the cheapest to study.
  """
  return list(dict.fromkeys([*first_cases(), *_small_cases(), *_large_cases()]))


def first_cases() -> Iterator[Case]:
  """Yields every kernel, at the width of 124M parameters and at that of 1.35B."""
  for dtype, tokens, width in (("float32", 1001, 768), ("bfloat16", 4099, 2048)):
    for kind in _STREAMS:
      yield Case(kind, tokens, width, dtype, recent=4, norm=kind != "gated")
    yield Case("direct", tokens, width, dtype, recent=8)
    yield Case("direct", tokens, width, dtype, 7, 1, 5, adds=True, norm=True, threaded=True)
    yield Case("block", tokens, width, dtype, 7, 0, 7, reads=8, threaded=True)
    yield Case("merge", tokens, width, dtype, reads=2, adds=True, norm=True)


def _small_cases() -> Iterator[Case]:
  direct, block = functools.partial(Case, "direct"), functools.partial(Case, "block")
  merge = functools.partial(Case, "merge", adds=True, norm=True)
  fused = functools.partial(direct, adds=True, norm=True, threaded=True)
  for dtype in LIMITS:
    yield direct(SMALL, 128, dtype, recent=1)
    yield block(SMALL, 128, dtype, recent=1, reads=1, threaded=True)
    yield merge(SMALL, 128, dtype)
    if dtype != "float16":
      yield Case("mhc", SMALL, 128, dtype, recent=2, norm=True)
      yield Case("fixed", SMALL, 128, dtype, recent=3)
      yield Case("gated", SMALL, 128, dtype, recent=2)
  yield fused(SMALL, 128, banked=2, recent=2, valid=1)
  for dtype in LIMITS:
    yield direct(dtype=dtype)
    yield fused(dtype=dtype, banked=2, recent=2, valid=1)
    for threaded in (True, False):
      yield block(dtype=dtype, banked=2, recent=1, valid=2, threaded=threaded)
    yield merge(dtype=dtype)
    yield merge(dtype=dtype, adds=False, norm=False)
  bf16 = "bfloat16"
  yield direct(dtype=bf16, banked=3, recent=2, adds=True, threaded=True)  # an empty bank
  yield fused(dtype=bf16, banked=3, recent=2, valid=2, last=False)
  yield block(width=128, dtype=bf16, banked=9, recent=0, valid=5, reads=9, threaded=True)
  yield block(width=128, dtype=bf16, banked=12, recent=4, valid=7, reads=2, threaded=True)
  yield merge(dtype=bf16, last=False)


def _large_cases() -> Iterator[Case]:
  """Yields cases in which all programs run, and have several tokens each; T divides by nothing."""
  for dtype in ("bfloat16", "float32"):
    for width in (768, 1024, 2048, 4096, 7168):
      yield Case("direct", 4099, width, dtype, recent=8)
      yield Case("merge", 4099, width, dtype, reads=2, adds=True, norm=True)
      if width <= 2048:
        yield Case("block", 4099, width, dtype, 7, 0, 7, reads=8, threaded=True)
      if width <= 2048 or dtype == "bfloat16":
        yield Case("mhc", 4099, width, dtype, recent=4, norm=True)
        yield Case("gated", 4099, width, dtype, recent=4)
  fused = functools.partial(Case, "direct", adds=True, norm=True, threaded=True)
  bf16 = "bfloat16"
  yield fused(4099, 2048, bf16, 7, 1, 5)
  yield Case("mhc", 4099, 2048, bf16, recent=6)
  yield Case("fixed", 4099, 2048, bf16, recent=4, norm=True)
  yield fused(2053, 7168, bf16, 7, 1, 6)
  yield Case("direct", 2053, 7168, bf16, recent=16)  # sources do not stay on the chip
  yield fused(2053, 7168, bf16, 15, 1, 15)
  yield Case("direct", 2053, 8192, "float32", recent=8)
  yield Case("direct", 1025, 1024, bf16, recent=33)
  yield Case("block", 2053, 7168, bf16, 9, 0, 9, reads=8, threaded=True)
  yield Case("block", 1025, 1536, bf16, 0, 32, reads=2)
  yield Case("block", 1025, 1024, bf16, 4, 0, 4, reads=24, threaded=True)
  yield Case("merge", 2053, 8192, "float32", reads=2, adds=True, norm=True)
  yield Case("direct", 65537, 2048, bf16, recent=8)


def check(case: Case, again: int, interpret: bool) -> dict:
  """Returns the errors of a kernel, and a status that says whether they are small enough."""
  options: dict[str, Any] = {"implementation": "mosaic_gpu"}
  if interpret:
    # JAX before 0.11 has no interpreter of GPU kernels, and none is known to the type checker.
    plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    options["interpret"] = plgpu.InterpretGPUParams(detect_races=True)
  inputs, cotangents = _example(case)
  begin = time.perf_counter()
  run = jax.jit(functools.partial(_both, case, options))
  poisoned = _poisoned(case, inputs)
  compiled = run.lower(poisoned, cotangents).compile()
  seconds = time.perf_counter() - begin
  got = jax.block_until_ready(compiled(poisoned, cotangents))
  bits = [np.asarray(x).tobytes() for x in jax.tree.leaves(got)]
  same = True
  for _ in range(again):
    others = jax.tree.leaves(jax.block_until_ready(compiled(poisoned, cotangents)))
    same &= all(a == np.asarray(b).tobytes() for a, b in zip(bits, others, strict=True))
  with jax.enable_x64(True):
    reference = jax.jit(functools.partial(_both, case, {"implementation": "reference"}))
    want = jax.block_until_ready(reference(_wide(inputs), _wide(cotangents)))
  out_error, grad_error = (_error(g, w) for g, w in zip(got, want, strict=True))
  most_out, most_grad = LIMITS[case.dtype]
  fine = out_error <= most_out and grad_error <= most_grad
  return {
    "out_error": out_error,
    "grad_error": grad_error,
    "same_bits": same,
    "compile_seconds": round(seconds, 2),
    "status": OK if fine and same else "wrong" if not fine else "race",
  }


def _both(case: Case, options: dict, inputs: dict, cotangents: PyTree) -> tuple[PyTree, PyTree]:
  """Returns the results of an operation that count, and the cotangents of its inputs."""
  out, vjp = jax.vjp(functools.partial(_operation, case, options), inputs)
  return _counted(case, out), vjp(cotangents)[0]


def _operation(case: Case, options: dict, inputs: dict) -> PyTree:
  fused = {name: inputs[name] for name in ("addend", "out_norm_scale") if name in inputs}
  options = options | fused
  if case.kind == "gated":
    return gated_reads.run(inputs, options)
  if case.kind in _STREAMS:
    return _stream_read(inputs, options)
  if case.kind == "merge":
    merged: Any = depth_attention_merge(
      BlockRead(inputs["out"], inputs["lse"], inputs["inverse_rms"]), case.reads - 1,
      inputs["running"], inputs["query"], last_valid=case.last, **options,
    )  # fmt: skip
    y, running, reads = merged
    return y, running, (reads.out, reads.lse)
  sources = Sources(inputs["recent"], inputs["bank"], case.valid)
  options |= {"return_sources": case.threaded}
  if case.kind == "block":
    got: Any = depth_attention_block(sources, inputs["query"], key_scales=inputs["gain"], **options)
  else:
    got = depth_attention(
      sources, inputs["query"], key_scale=inputs["gain"], last_valid=case.last, **options
    )
  result, kept = got if case.threaded else (got, None)
  outs = (result.out, result.lse) if case.kind == "block" else (result,)
  return outs if kept is None else (*outs, kept.bank, kept.recent)


def _counted(case: Case, outs: PyTree) -> PyTree:
  """Returns the results of an operation without the slots of a returned bank that do not count."""
  if not case.threaded or not case.banked:
    return outs
  *others, bank, recent = outs
  return *others, bank[: case.valid], recent


def _stream_read(inputs: dict, options: dict) -> PyTree:
  gates = SinkhornGates(len(inputs["pending"].streams))

  def coefficients(products: Any, squares: Any, parameters: PyTree) -> tuple[Array, Any, Array]:
    if products is None:
      (shares,) = parameters
      return shares[:, 0], None, shares[:, 1]
    return gates(products * jax.lax.rsqrt(jnp.mean(squares, axis=0) + _EPS), *parameters)

  return stream_read(
    inputs["pending"], inputs["phi"], inputs["parameters"], coefficients,
    norm_gain=inputs["gain"], **options,
  )  # fmt: skip


def _stream_example(case: Case) -> tuple[dict, PyTree]:
  """Returns the arguments of a read of residual streams, and cotangents of its results."""
  count, row, columns = case.recent, (case.tokens, case.width), case.recent * (case.recent + 2)
  squares, streams = (count * (count + 1), case.tokens), (count, *row)
  phi: Array | None = None
  parameters: tuple[Array, ...] = (_normal(24, count, 2),)
  if case.kind == "mhc":
    phi = _normal(22, count, case.width, columns) / np.sqrt(count * case.width)
    parameters = _normal(23, columns), _normal(25, 3)
  inputs = {
    "pending": Pending(_rows(20, case, streams), _normal(21, *squares), _rows(26, case, row)),
    "phi": phi,
    "parameters": parameters,
    "gain": _normal(27, case.width) if case.norm else None,
  }
  return inputs, (_rows(28, case, row), _rows(29, case, streams), _normal(30, *squares))


def _normal(seed: int, *shape: int, dtype: str = "float32") -> Array:
  values = np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)
  return jnp.asarray(values, jnp.dtype(dtype))


def _example(case: Case) -> tuple[dict, PyTree]:
  """Returns the inputs of an operation by name, and cotangents of its results."""
  row, reads = (case.tokens, case.width), (case.reads, case.tokens, case.width)
  queries = (case.reads, case.width) if case.kind == "block" else (case.width,)
  if case.kind == "gated":
    return gated_reads.example(case.recent, case.tokens, case.width, case.dtype)
  if case.kind in _STREAMS:
    return _stream_example(case)
  inputs: dict[str, Any] = {"query": _normal(1, *queries) / np.sqrt(case.width)}
  if case.adds:
    inputs["addend"] = _rows(2, case, row)
  if case.norm:
    inputs["out_norm_scale"] = _normal(3, case.width)
  d_out = _rows(4, case, row)
  if case.kind == "merge":
    inputs |= {"out": _rows(5, case, reads), "running": _rows(7, case, row)}
    inputs["lse"] = 1 + _normal(6, case.reads, case.tokens)
    inputs["inverse_rms"] = None  # a merge does not need it
    d_lse = _normal(9, case.reads, case.tokens)
    return inputs, (d_out, _rows(8, case, row), (_rows(10, case, reads), d_lse))
  inputs["gain"] = _normal(11, *queries)
  inputs |= dict(zip(("bank", "recent"), _sources(20, case), strict=True))
  d_sources = _sources(60, case) if case.threaded else ()
  if case.kind == "block":
    d_lse = _normal(13, case.reads, case.tokens)
    return inputs, (_rows(12, case, reads), d_lse, *d_sources)
  return inputs, (d_out, *d_sources)


def _rows(seed: int, case: Case, shape: tuple[int, ...]) -> Array:
  return _normal(seed, *shape, dtype=case.dtype)


def _sources(seed: int, case: Case) -> tuple[Array | None, tuple[Array, ...]]:
  row = case.tokens, case.width
  bank = _rows(seed, case, (case.banked, *row)) if case.banked else None
  return bank, tuple(_rows(seed + 1 + i, case, row) for i in range(case.recent))


def _poisoned(case: Case, inputs: dict) -> dict:
  """Returns the inputs with NaN in all that does not count, of which nothing may come."""
  if case.kind in _STREAMS:
    return inputs
  if case.kind == "merge":
    return inputs if case.last or case.adds else inputs | {"running": inputs["running"] * jnp.nan}
  if inputs["bank"] is None:
    return inputs
  return inputs | {"bank": inputs["bank"].at[case.valid :].set(jnp.nan)}


def _wide(tree: PyTree) -> PyTree:
  def widened(x: Array) -> Array:
    return jnp.asarray(np.asarray(x, np.float64))

  return jax.tree.map(widened, tree)


def _error(got: PyTree, want: PyTree) -> float:
  """Returns the largest relative L2 error; a small array counts by its share of all."""
  wide = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(want)]
  norm = np.sqrt(sum(np.linalg.norm(leaf) ** 2 for leaf in wide))
  size, worst = sum(leaf.size for leaf in wide), 0.0
  for leaf, found in zip(wide, jax.tree.leaves(got), strict=True):
    least = max(np.linalg.norm(leaf), 1e-2 * norm * np.sqrt(leaf.size / size))
    error = float(np.linalg.norm(np.asarray(found, np.float64) - leaf) / least)
    worst = error if np.isnan(error) else max(worst, error)
  return worst
