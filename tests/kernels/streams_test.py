"""Reads of residual streams against their equations in float64, in plain JAX and as kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh

from resjax import combinators
from resjax.aot import absent_devices
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.base.sharding import MESH_AXES, Layout
from resjax.kernels.streams import Pending, sinkhorn, stream_read
from resjax.kernels.streams.mosaic_tpu import budget, forward
from resjax.kernels.streams.mosaic_tpu.plan import Plan
from resjax.kernels.streams.operands import Operands, Read
from resjax.testing.compare import assert_close
from tests.helpers import streams
from tests.helpers.libtpu import needs_libtpu

# Races are looked for, and memory starts as NaN.
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
TOKENS, WIDTH = (2, 128), 256


@pytest.mark.parametrize(
  "form, count, normed, dtype",
  [
    pytest.param("joint", 4, True, jnp.float32, marks=pytest.mark.slow),
    pytest.param("joint", 4, True, jnp.bfloat16, marks=pytest.mark.release),
    pytest.param("joint", 2, False, jnp.float32, marks=pytest.mark.release),
    pytest.param("joint", 2, False, jnp.bfloat16, marks=pytest.mark.release),
    pytest.param("shared", 3, True, jnp.float32, marks=pytest.mark.slow),
    pytest.param("shared", 3, True, jnp.bfloat16, marks=pytest.mark.release),
    ("static", 2, True, jnp.float32),
    pytest.param("static", 2, True, jnp.bfloat16, marks=pytest.mark.slow),
    # With 8 streams a kernel has a coefficient per row of a register, not per register.
    pytest.param("joint", 8, True, jnp.float32, marks=pytest.mark.release),
    pytest.param("joint", 8, True, jnp.bfloat16, marks=pytest.mark.release),
  ],
)
@pytest.mark.parametrize("implementation", ["reference", "mosaic_tpu"])
def test_values_and_gradients(implementation, form, count, normed, dtype, capfd):
  case = form, count, dtype, normed, TOKENS, WIDTH
  interpret = INTERPRET if implementation == "mosaic_tpu" else False
  got = streams.got(implementation, interpret, *case)
  # The equations do not round the streams that are read to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, streams.wanted(*case), tolerance)
  assert "RACE" not in capfd.readouterr().out


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_read_that_the_site_before_has_decided(count):
  case = "previous", count, jnp.float32, True, (3,), 8
  assert_close(streams.got("reference", False, *case), streams.wanted(*case), 3e-6)


@pytest.mark.parametrize(
  "form, count, normed, dtype, part",
  [
    ("joint", 2, True, jnp.float32, 256),
    pytest.param("joint", 2, False, jnp.bfloat16, 128, marks=pytest.mark.release),
    pytest.param("shared", 3, True, jnp.float32, 128, marks=pytest.mark.slow),
    pytest.param("shared", 3, True, jnp.bfloat16, 256, marks=pytest.mark.release),
    ("static", 2, True, jnp.float32, 128),
    pytest.param("joint", 8, True, jnp.float32, 128, marks=pytest.mark.release),
    pytest.param("joint", 8, True, jnp.bfloat16, 256, marks=pytest.mark.release),
  ],
)
def test_reverse_pass_in_two_kernels(monkeypatch, form, count, normed, dtype, part, capfd):
  """The second has tiles of 128 of the 256 channels; a part of them is one tile, or two."""
  monkeypatch.setattr(budget, "reverse", lambda read, plan: budget.Reverse(2, part, 128, 2))
  case = form, count, dtype, normed, TOKENS, WIDTH
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(streams.got("mosaic_tpu", INTERPRET, *case), streams.wanted(*case), tolerance)
  assert "RACE" not in capfd.readouterr().out


@pytest.mark.parametrize(
  "chip, count, columns, shared, second",
  [
    ("v5p", 2, 8, False, (0, 0, 0)),
    ("v5p", 4, 24, False, (0, 0, 0)),
    ("v5p", 16, 18, True, (0, 0, 0)),
    # φ of half of the channels, and two tiles of a quarter of them beside each other.
    ("v5p", 16, 288, False, (1024, 512, 2)),
    # v6e has one core, and the two cores of v5p take a half each though one would have room.
    ("v6e", 16, 288, False, (2048, 1024, 2)),
    ("v5p", 12, 168, False, (1024, 1024, 2)),
  ],
)
def test_reverse_pass_runs_in_one_kernel_where_that_has_room(
  monkeypatch, chip, count, columns, shared, second
):
  monkeypatch.setattr(budget, "chip_of", lambda layout: chip)
  plan = Plan(count, 8192, 2048, jnp.dtype(jnp.bfloat16), columns, shared, not shared)
  way = budget.reverse(Read(streams.free, 0, 1e-6, implementation="mosaic_tpu"), plan)
  assert way[1:] == second


@pytest.mark.parametrize(
  "form, implementation, interpret, forward, again",
  [
    ("static", "reference", False, 0, 0),
    ("static", "mosaic_tpu", True, "(True, True, True)", "(True, False, False)"),
    pytest.param(
      "joint", "mosaic_tpu", True, "(True, True, True, False, False)",
      "(True, False, False, True, True)", marks=pytest.mark.slow,
    ),
  ],
)  # fmt: skip
def test_a_layer_that_runs_again_leaves_out_its_last_streams(
  form, implementation, interpret, forward, again
):
  """And stats, when it runs for the first time."""
  given, _ = streams.example(form, 2, jnp.float32, True, (128,), 128)
  given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
  parameters, coefficients = given["parameters"], streams.free
  if form == "joint":
    coefficients = functools.partial(streams.constrained, functools.partial(sinkhorn, 2))

  def layer(implementation, interpret, pending, gain):
    for _ in range(2):
      x, *tape = stream_read(
        pending, given["projection"], parameters, coefficients, norm_gain=gain,
        implementation=implementation, interpret=interpret,
      )  # fmt: skip
      pending = Pending(*tape, jnp.sin(x))
    return pending

  def gradient(*options):
    run = jax.checkpoint(functools.partial(layer, *options))
    pending = Pending(given["streams"], given["weights"], given["out"])

    def loss(pending, gain):
      return sum(jnp.sum(jnp.sin(x)) for x in run(pending, gain))

    return jax.make_jaxpr(jax.grad(loss, (0, 1)))(pending, given["gain"]), jax.jit(
      jax.grad(loss, (0, 1))
    )(pending, given["gain"])

  program, got = gradient(implementation, interpret)
  assert (str(program).count(f"needed={forward}") >= 2) == bool(forward)
  assert str(program).count(f"needed={again}") == bool(again)
  assert_close(got, gradient("reference", False)[1], 1e-5)


@pytest.mark.parametrize("tokens", [50, 300])  # in a loop, and one round after another
@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_sinkhorn_is_that_of_logarithms(size, tokens):
  logits = size * jax.random.normal(jax.random.key(0), (4, 4, tokens))

  def run(f):
    return jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(f(x)))))(logits)

  got, want = (run(f) for f in (lambda x: sinkhorn(20, x), lambda x: streams.by_logarithms(x, 20)))
  assert_close(got, want, 1e-4 if size > 1 else 2e-6)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"tokens": 100}, "a device has 100 tokens, it takes multiples of 128"),
    (
      {"count": 32, "columns": 1088},
      "32 streams of width 2048 with 1088 coefficients need 314 MiB",
    ),
    ({"width": 200}, "the width 200 (config.model.d_model) is no multiple of 128"),
    ({"dtype": jnp.float16}, "the streams are float16"),
    ({"rows": 3}, "the site before has decided what is read (read_site=previous)"),
  ],
)
def test_what_a_kernel_refuses(changes, words):
  sizes = {"count": 2, "tokens": 128, "width": 2048, "columns": 4, "dtype": jnp.bfloat16} | changes
  rows = sizes.get("rows", sizes["count"])
  count, tokens, width = sizes["count"], sizes["tokens"], sizes["width"]
  pending = Pending(
    jax.ShapeDtypeStruct((count, tokens, width), sizes["dtype"]),
    jax.ShapeDtypeStruct((rows * (count + 1), tokens), jnp.float32),
    jax.ShapeDtypeStruct((tokens, width), sizes["dtype"]),
  )
  projection = jax.ShapeDtypeStruct((count, width, sizes["columns"]), jnp.float32)
  read = functools.partial(
    stream_read,
    parameters=(),
    coefficients=streams.free,
    implementation="mosaic_tpu",
    interpret=True,
  )
  with pytest.raises(ValueError) as raised:
    jax.eval_shape(read, pending, projection)
  assert words in str(raised.value)


@pytest.mark.release
@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 3e-6), (jnp.bfloat16, 1.5e-2)])
def test_sixteen_streams_are_those_of_the_reference(monkeypatch, dtype, tolerance):
  """With the 288 coefficients of `mhc`, one of its iterations, and two tiles in a part."""
  monkeypatch.setattr(budget, "reverse", lambda read, plan: budget.Reverse(1, 256, 128, 1))
  given, cotangents = streams.example("joint", 16, dtype, True, (128,), 256)
  given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
  coefficients = functools.partial(streams.constrained, functools.partial(sinkhorn, 1))

  def read(options, dtype, given):
    pending = Pending(given["streams"].astype(dtype), given["weights"], given["out"].astype(dtype))
    return stream_read(
      pending, given["projection"], given["parameters"], coefficients, norm_gain=given["gain"],
      **options,
    )  # fmt: skip

  def found(dtype, **options):
    def loss(given):
      outputs = read(options, dtype, given)
      return sum(
        jnp.vdot(x.astype(jnp.float32), d) for x, d in zip(outputs, cotangents, strict=True)
      )

    return jax.jit(lambda given: (read(options, dtype, given), jax.grad(loss)(given)))(given)

  got = found(dtype, implementation="mosaic_tpu", interpret=True)
  assert_close(got, found(jnp.float32, implementation="reference"), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("keep_streams", [True, False])
def test_forward_without_stats_is_the_same(keep_streams):
  given, _ = streams.example("joint", 2, jnp.bfloat16, True, (256,), 256)
  given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
  pending = Pending(given["streams"].astype(jnp.bfloat16), given["weights"],
                    given["out"].astype(jnp.bfloat16))  # fmt: skip
  operands = Operands(pending, given["projection"][None], given["parameters"], given["gain"])
  coefficients = functools.partial(streams.constrained, functools.partial(sinkhorn, 2))
  read = Read(coefficients, 0, 1e-6, implementation="mosaic_tpu", interpret=INTERPRET)
  x, written, weights, stats = forward.forward(
    read, operands, keep_streams=keep_streams, keep_stats=False
  )
  wanted = forward.forward(read, operands)
  assert stats is None and (written is not None) == keep_streams
  np.testing.assert_array_equal(x, wanted[0])
  np.testing.assert_array_equal(weights, wanted[2])


def test_a_site_that_is_not_there_is_named():
  pending = Pending(jnp.zeros((2, 3, 8)), jnp.zeros((6, 3)), jnp.zeros((3, 8)))
  for site in (-1, 2):
    with pytest.raises(ValueError, match=f"site={site} of a projection of 2 sites; .* 0 to 1"):
      stream_read(pending, jnp.zeros((2, 2, 8, 4)), (), streams.free, site)


def test_shapes_that_do_not_fit_are_named():
  pending = Pending(jnp.zeros((2, 3, 8)), jnp.zeros((5, 3)), jnp.zeros((3, 8)))
  with pytest.raises(ValueError, match=r"pending.weights has shape \(5, 3\).* need \(6, 3\)"):
    stream_read(pending, None, (), streams.free)
  pending = pending._replace(weights=jnp.zeros((6, 3)))
  with pytest.raises(ValueError, match=r"projection has shape \(3, 8, 4\)"):
    stream_read(pending, jnp.zeros((3, 8, 4)), (), streams.free)
  with pytest.raises(ValueError, match="implementation='cuda' of residual streams is not known"):
    stream_read(pending, None, (), streams.free, implementation="cuda")


def absent(chip):
  """Returns the layout of one chip that is not there, and a function of shapes of arrays on it."""
  devices = absent_devices.describe({"v5p": "v5p-8", "tpu7x": "tpu7x-8"}.get(chip, f"{chip}-1"))
  mesh = Mesh(np.array(devices.devices[:1]).reshape(1, 1, 1, 1, 1), MESH_AXES,
              axis_types=(AxisType.Auto,) * 5)  # fmt: skip
  layout = Layout(mesh)

  def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(*[None] * len(shape)))

  return layout, array


def pending_of(array, count, tokens, width):
  held = functools.partial(array, dtype=jnp.bfloat16)
  weights = array(count * (count + 1), 1, tokens)
  return Pending(held(count, 1, tokens, width), weights, held(1, tokens, width))


def gradient(layout, coefficients, site=None):
  """Returns the gradient of a read, a program of kernels."""

  def loss(pending, projection, parameters, gain):
    found = stream_read(
      pending, projection, parameters, coefficients, site, norm_gain=gain, layout=layout,
      implementation="mosaic_tpu",
    )  # fmt: skip
    return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in found)

  return jax.jit(jax.grad(loss, (0, 1, 2, 3)))


def kernels_of(compiled):
  return compiled.as_text().count('custom_call_target="tpu_custom_call"')


@needs_libtpu
@pytest.mark.slow
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize(
  "chip, count, kernels",
  [*((c, 4, 2) for c in TPU_CHIPS if c != "v4"), ("v5p", 2, 2), ("v5p", 16, 3), ("tpu7x", 16, 3)],
)
def test_kernels_compile_for_absent_chips(chip, count, kernels):
  layout, array = absent(chip)
  coefficients = functools.partial(streams.constrained, functools.partial(sinkhorn, 20))
  columns = 2 * count + count**2
  arguments = array(count, 2048, columns), (array(columns),), array(2048)
  program = gradient(layout, coefficients).lower(pending_of(array, count, 1024, 2048), *arguments)
  assert kernels_of(program.compile()) == kernels


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize(
  "name, options",
  [
    ("hyper_connections", {}), ("mhc", {}), ("mhc", {"constraint": "rows"}), ("mhc_lite", {}),
    ("independent_hc", {}),
  ],
)  # fmt: skip
def test_coefficients_of_systems_compile_in_kernels(name, options):
  layout, array = absent("v5p")
  made = combinators.build(name, num_layers=2, d_model=128, rngs=nnx.Rngs(0), **options)
  projection, parameters, coefficients, site = made.reading(1, "mlp")
  shapes = jax.tree.map(lambda x: array(*x.shape), (projection, parameters))
  program = gradient(layout, coefficients, site).lower(
    pending_of(array, 4, 256, 128), *shapes, array(128)
  )
  assert kernels_of(program.compile()) == 2
