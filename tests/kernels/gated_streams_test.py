"""Gated reads of streams against their equations in float64, in plain JAX and as kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh

from resjax.aot import absent_devices
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.base.sharding import MESH_AXES, Layout
from resjax.kernels.gated_streams import gated_read
from resjax.testing.compare import assert_close
from tests.helpers import gated_streams, layouts
from tests.helpers.libtpu import needs_libtpu

# Races are looked for, and memory starts as NaN.
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
TOKENS = (2, 128)


@pytest.mark.parametrize(
  "count, shared, injected, rank, width, dtype",
  [
    (2, False, True, 8, 384, jnp.float32),
    (4, True, True, 8, 256, jnp.bfloat16),
    (1, False, False, 130, 128, jnp.float32),
    pytest.param(4, False, True, 130, 256, jnp.float32, marks=pytest.mark.slow),
    pytest.param(1, False, True, 8, 256, jnp.bfloat16, marks=pytest.mark.slow),
    pytest.param(2, False, False, 130, 512, jnp.bfloat16, marks=pytest.mark.slow),
    pytest.param(5, True, True, 8, 128, jnp.float32, marks=pytest.mark.slow),
    pytest.param(4, False, False, 8, 128, jnp.float32, marks=pytest.mark.release),
    pytest.param(2, True, True, 128, 256, jnp.bfloat16, marks=pytest.mark.release),
  ],
)
@pytest.mark.parametrize("implementation", ["reference", "mosaic_tpu"])
def test_values_and_gradients(
  implementation, count, shared, injected, rank, width, dtype, capfd
):  # fmt: skip
  case = count, shared, injected, rank, dtype, TOKENS, width
  interpret = INTERPRET if implementation == "mosaic_tpu" else False
  got = gated_streams.got(implementation, interpret, *case)
  # The equations round neither normalised streams nor gates to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, gated_streams.wanted(*case), tolerance)
  assert "RACE" not in capfd.readouterr().out


def test_a_scan_with_recomputation():
  """The streams that a read hands on are written to, and read again in the next step."""
  case = 2, True, True, 8, jnp.float32, (128,), 128
  arguments, _ = gated_streams.example(*case)
  streams, *weights = (jnp.asarray(arguments[name], jnp.float32) for name in gated_streams.NAMES)

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def gradients(implementation, interpret, streams, weights):
    @jax.checkpoint
    def step(streams, _):
      x, logits, streams = gated_read(
        streams, *weights, implementation=implementation, interpret=interpret
      )
      return streams + jax.nn.sigmoid(logits)[..., None] * jnp.tanh(x), None

    def loss(streams, weights):
      return jnp.sum(jnp.sin(jax.lax.scan(step, streams, length=3)[0]))

    return jax.value_and_grad(loss, (0, 1))(streams, weights)

  want = gradients("reference", False, streams, weights)
  assert_close(gradients("mosaic_tpu", True, streams, weights), want, 1e-5)


def test_tokens_over_eight_devices_are_those_of_one():
  """Devices exchange nothing but the sums over tokens in the gradients of weights."""
  case = 2, False, True, 8, jnp.float32, (4, 256), 128
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  got = gated_streams.got("mosaic_tpu", True, *case, layout=layout)
  assert_close(got, gated_streams.wanted(*case), 3e-6)


def test_there_is_no_second_derivative():
  case = 1, True, False, 8, jnp.float32, (128,), 128
  arguments, _ = gated_streams.example(*case)
  streams, *weights = (jnp.asarray(arguments[n], jnp.float32) for n in gated_streams.NAMES[:-1])

  def loss(gain):
    return jnp.sum(
      gated_read(
        streams, gain, *weights[1:], None, implementation="mosaic_tpu", interpret=True
      )[0]
    )  # fmt: skip

  with pytest.raises(ValueError, match="no second derivative; use implementation='reference'"):
    jax.hessian(loss)(weights[0])


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"tokens": 100}, "a device has 100 tokens, it takes multiples of 128"),
    ({"count": 16}, "128 tokens of 16 streams of width 2048 with gates of rank 256 need"),
    ({"width": 200}, "the width 200 (config.model.d_model) is no multiple of 128"),
    ({"dtype": jnp.float16}, "the streams are float16"),
  ],
)
def test_what_a_kernel_refuses(changes, words):
  sizes = {"count": 2, "tokens": 128, "width": 2048, "dtype": jnp.bfloat16} | changes
  count, tokens, width = sizes["count"], sizes["tokens"], sizes["width"]
  array = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
  read = functools.partial(gated_read, implementation="mosaic_tpu", interpret=True)
  with pytest.raises(ValueError) as raised:
    jax.eval_shape(
      read, jax.ShapeDtypeStruct((count, tokens, width), sizes["dtype"]), array((count, width)),
      array((count, width, 256)), array((count, 256, width)), array((count, width, count)),
    )  # fmt: skip
  assert words in str(raised.value)


def test_shapes_that_do_not_fit_are_named():
  streams, gain = jnp.zeros((2, 3, 8)), jnp.zeros((2, 8))
  down, up, inject = jnp.zeros((2, 8, 4)), jnp.zeros((2, 4, 8)), jnp.zeros((2, 8, 2))
  with pytest.raises(ValueError, match=r"gain has shape \(3, 8\).* need \(2, 8\) or \(1, 8\)"):
    gated_read(streams, jnp.zeros((3, 8)), down, up, inject)
  with pytest.raises(ValueError, match=r"up has shape \(2, 8, 4\).* rank 4 need \(2, 4, 8\)"):
    gated_read(streams, gain, down, down, inject)
  with pytest.raises(ValueError, match=r"inject has shape \(2, 8, 4\).* need \(2, 8, 2\)"):
    gated_read(streams, gain, down, up, down)
  with pytest.raises(ValueError, match=r"implementation='cuda' of gated reads.* is not known"):
    gated_read(streams, gain, down, up, inject, implementation="cuda")


def on_chip(chip):
  """The layout of one absent chip."""
  devices = absent_devices.describe(f"{chip}-{8 if chip in ('v4', 'v5p', 'tpu7x') else 1}")
  mesh = Mesh(np.array(devices.devices[:1]).reshape(1, 1, 1, 1, 1), MESH_AXES,
              axis_types=(AxisType.Auto,) * 5)  # fmt: skip
  return Layout(mesh)


def with_gradients(layout, implementation, count, dtype, width, injected):
  """A function that reads and takes all gradients, and the shapes of its arguments."""

  def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(*[None] * len(shape)))

  rank = width // 8
  arguments = [
    array(count, 1, 1024, width, dtype=dtype), array(count, width),
    array(count, width, rank), array(count, rank, width),
  ]  # fmt: skip
  if injected:
    arguments.append(array(count, width, count))

  def loss(streams, gain, down, up, inject=None):
    found = gated_read(
      streams, gain, down, up, inject, layout=layout, implementation=implementation
    )
    return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in found if x is not None)

  return jax.jit(jax.grad(loss, tuple(range(len(arguments))))), arguments


@needs_libtpu
@pytest.mark.slow
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize(
  "chip, count, dtype, width, injected",
  [
    *((chip, 4, jnp.bfloat16, 2048, True) for chip in TPU_CHIPS if chip != "v4"),
    ("v5p", 1, jnp.bfloat16, 768, False),
    ("v5p", 5, jnp.float32, 384, True),
  ],
)
def test_kernels_compile_for_absent_chips(chip, count, dtype, width, injected):
  run, arguments = with_gradients(on_chip(chip), "mosaic_tpu", count, dtype, width, injected)
  compiled = run.lower(*arguments).compile()
  assert compiled.as_text().count('custom_call_target="tpu_custom_call"') == 2


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
def test_v4_has_no_room():
  run, arguments = with_gradients(on_chip("v4"), "mosaic_tpu", 4, jnp.bfloat16, 2048, True)
  with pytest.raises(ValueError, match=r"4 streams of width 2048 .* on the chip, it has 11"):
    run.lower(*arguments)
