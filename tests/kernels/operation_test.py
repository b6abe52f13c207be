"""The shell around operations with kernels: what it loads, and what it refuses."""

import jax
import jax.numpy as jnp
import pytest

from resjax.kernels.depth_attention.operation import BLOCK, DIRECT, MERGE
from resjax.kernels.gated_streams.operation import READ as GATED
from resjax.kernels.operation import KERNELS, LANES, Axes, Operation, Options
from resjax.kernels.streams.operation import READ

OPERATIONS = {"direct": DIRECT, "block": BLOCK, "merge": MERGE, "streams": READ, "gated": GATED}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_its_passes_in_every_implementation(name):
  operation = OPERATIONS[name]
  for implementation in KERNELS:
    modules = {part: operation.load(implementation, part) for part in ("forward", "backward")}
    for part, module in modules.items():
      assert module.__name__.split(".")[-2:] == [
        implementation,
        f"{operation.kind}_{part}".strip("_"),
      ]
      assert callable(getattr(module, part))
    assert callable(
      getattr(operation.load(implementation, "obstacles"), operation.kind or "obstacle")
    )
  if name != "gated":  # JAX differentiates its reference
    reference = operation.load("reference", "forward")
    assert reference is operation.load("reference", "backward")
    assert callable(reference.forward) and callable(reference.backward)


class Arrays(tuple):
  """Operands of which the shell sees the shape of an array alone."""

  like = jax.ShapeDtypeStruct((2, 3, LANES), jnp.float32)


NOTHING = Operation("nothing", "no.such.package", lambda options, operands: Axes((), (), (), ()))


def test_off_its_platform_a_kernel_is_refused_before_it_is_imported():
  assert NOTHING.choose(Options(), Arrays(), None).implementation == "reference"
  assert not NOTHING.has_kernel(Options(), Arrays(), "mosaic_tpu")
  with pytest.raises(ValueError, match=r"'mosaic_gpu' of nothing cannot run: it needs .*'gpu'"):
    NOTHING.choose(Options(), Arrays(), "mosaic_gpu")
  with pytest.raises(ValueError, match=r"'mosaic' of nothing is not known; allowed: mosaic_tpu, "):
    NOTHING.choose(Options(), Arrays(), "mosaic")


@pytest.mark.parametrize(
  ("shape", "dtype", "words"),
  [
    ((3, LANES), "float64", "the streams are float64, it takes bfloat16 and float32"),
    ((3, LANES + 1), "float32", "the width 129 (config.model.d_model) is no multiple of 128"),
  ],
)
def test_what_no_kernel_takes_is_refused_with_the_reason(shape, dtype, words):
  class Given(tuple):
    like = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

  with pytest.raises(ValueError) as refused:
    NOTHING.choose(Options(interpret=True), Given(), "mosaic_tpu")
  assert f"cannot run: {words}; " in str(refused.value)
