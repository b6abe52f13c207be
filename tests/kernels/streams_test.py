"""Reads of residual streams against their equations in float64, in plain JAX and as kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, Mesh

from resjax.aot import absent_devices
from resjax.hardware.chips import TPU_CHIPS
from resjax.kernels.streams import Pending, sinkhorn, stream_read
from resjax.sharding import MESH_AXES, Layout
from tests.helpers.compare import assert_close
from tests.helpers.libtpu import needs_libtpu

# Races are looked for, and memory starts as NaN.
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
TOKENS, WIDTH, EPS = (2, 128), 256, 1e-6
FORMS = "joint", "shared", "static"


def by_logarithms(logits, iterations):
  """Sinkhorn's iteration as the mHC paper writes it, of [R, R, ...]."""
  for _ in range(iterations):
    logits = logits - jax.nn.logsumexp(logits, axis=0, keepdims=True)
    logits = logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)
  return jnp.exp(logits)


def constrained(mix, products, squares, parameters):
  (bias,) = parameters
  count = len(squares)
  z = products * jax.lax.rsqrt(jnp.mean(squares, axis=0) + EPS) + bias
  square = z[2 * count :].reshape(count, count, *z.shape[1:])
  return jax.nn.sigmoid(z[:count]), mix(square), 2 * jax.nn.sigmoid(z[count : 2 * count])


def free(products, squares, parameters):
  (alpha,) = parameters
  if products is not None:
    alpha = alpha + jnp.tanh(products * jax.lax.rsqrt(squares + EPS)[:, None])
  return alpha[:, 0], None if products is None else alpha[:, 2:], alpha[:, 1]


def example(form, count, dtype, normed):
  """Arguments of a read, and cotangents of its results; numbers that `dtype` holds."""
  rng = np.random.default_rng(count)

  def held(*shape):
    return np.float64(jnp.asarray(rng.normal(size=shape), dtype))

  def number(*shape):
    return np.float64(np.float32(rng.normal(size=shape)))

  columns, shape = {"joint": (2 * count + count**2, (count,)), "shared": (2 + count, ())}.get(
    form, (0, None)
  )
  return {
    "streams": held(count, *TOKENS, WIDTH),
    "weights": number(count * (count + 1), *TOKENS),
    "out": held(*TOKENS, WIDTH),
    "projection": None if shape is None else number(*shape, WIDTH, columns) / 16,
    "parameters": (number(columns) if form == "joint" else number(count, 2 + count),),
    "gain": number(WIDTH) if normed else None,
  }, (held(*TOKENS, WIDTH), held(count, *TOKENS, WIDTH), number(count * (count + 1), *TOKENS))


def coefficients(form, mix):
  return functools.partial(constrained, mix) if form == "joint" else free


def by_equations(form, streams, weights, out, projection, parameters, gain):
  """What `stream_read` returns, as its docstring says it, without a line of the library."""
  count = len(streams)
  square = weights.reshape(count, count + 1, *TOKENS)
  sources = jnp.concatenate([streams, out[None]])
  streams = jnp.einsum("rs...,s...d->r...d", square, sources)
  products = squares = None
  if projection is not None:
    equation = "r...d,rdk->k..." if projection.ndim == 3 else "r...d,dk->rk..."
    products = jnp.einsum(equation, streams, projection)
    squares = jnp.mean(streams**2, axis=-1)
  spread = [p.reshape(*p.shape, 1, 1) for p in parameters]
  mix = functools.partial(by_logarithms, iterations=20)
  read, mixing, write = coefficients(form, mix)(products, squares, spread)
  x = jnp.sum(read[..., None] * streams, axis=0)
  if gain is not None:
    x = x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + EPS) * gain
  if mixing is None:
    mixing = jnp.eye(count).reshape(count, count, 1, 1)
  mixing = jnp.broadcast_to(mixing, (count, count, *TOKENS))
  write = jnp.broadcast_to(write, (count, *TOKENS))
  return x, streams, jnp.concatenate([mixing, write[:, None]], axis=1).reshape(-1, *TOKENS)


def with_gradients(read, arguments, cotangents):
  given = {name: value for name, value in arguments.items() if value is not None}
  absent = {name: None for name in arguments if name not in given}
  found, vjp = jax.vjp(lambda given: read(**given, **absent), given)
  like = [jnp.asarray(d, x.dtype) for d, x in zip(cotangents, found, strict=True)]
  return found, vjp(tuple(like))[0]


@functools.cache
def wanted(form, count, dtype, normed):
  with jax.enable_x64(True):
    arguments, cotangents = example(form, count, dtype, normed)
    run = jax.jit(functools.partial(with_gradients, functools.partial(by_equations, form)))
    return jax.tree.map(np.float64, run(jax.tree.map(jnp.asarray, arguments), cotangents))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
  "form, count, normed",
  [
    ("joint", 4, True),
    pytest.param("joint", 2, False, marks=pytest.mark.slow),
    ("shared", 3, True),
    ("static", 2, True),
  ],
)
@pytest.mark.parametrize("implementation", ["reference", "mosaic_tpu"])
def test_values_and_gradients(implementation, form, count, normed, dtype, capfd):
  def read(streams, weights, out, projection, parameters, gain):
    return stream_read(
      Pending(streams, weights, out), projection, parameters,
      coefficients(form, functools.partial(sinkhorn, 20)), norm_gain=gain, norm_eps=EPS,
      implementation=implementation,
      interpret=INTERPRET if implementation == "mosaic_tpu" else False,
    )  # fmt: skip

  arguments, cotangents = example(form, count, dtype, normed)
  narrow = {"streams": dtype, "out": dtype}
  arguments = {
    name: jax.tree.map(lambda x, n=name: jnp.asarray(x, narrow.get(n, jnp.float32)), value)
    for name, value in arguments.items()
  }
  got = jax.jit(functools.partial(with_gradients, read))(arguments, cotangents)
  got = jax.tree.map(np.float64, got)
  # The equations do not round the streams that are read to bfloat16.
  tolerance = 3e-6 if dtype == jnp.float32 else 1.5e-2
  assert_close(got, wanted(form, count, dtype, normed), tolerance)
  assert "RACE" not in capfd.readouterr().out


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_sinkhorn_is_that_of_logarithms(size):
  logits = size * jax.random.normal(jax.random.key(0), (4, 4, 50))

  def run(f):
    return jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(f(x)))))(logits)

  got, want = (run(f) for f in (lambda x: sinkhorn(20, x), lambda x: by_logarithms(x, 20)))
  assert_close(got, want, 1e-4 if size > 1 else 2e-6)


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"tokens": 100}, "a device has 100 tokens, it takes multiples of 128"),
    ({"count": 16, "columns": 288}, "16 streams of width 2048 with 288 coefficients need"),
    ({"width": 200}, "the width 200 (config.model.d_model) is no multiple of 128"),
    ({"dtype": jnp.float16}, "the streams are float16"),
  ],
)
def test_what_a_kernel_refuses(changes, words):
  sizes = {"count": 2, "tokens": 128, "width": 2048, "columns": 4, "dtype": jnp.bfloat16} | changes
  count, tokens, width = sizes["count"], sizes["tokens"], sizes["width"]
  pending = Pending(
    jax.ShapeDtypeStruct((count, tokens, width), sizes["dtype"]),
    jax.ShapeDtypeStruct((count * (count + 1), tokens), jnp.float32),
    jax.ShapeDtypeStruct((tokens, width), sizes["dtype"]),
  )
  projection = jax.ShapeDtypeStruct((count, width, sizes["columns"]), jnp.float32)
  read = functools.partial(
    stream_read, parameters=(), coefficients=free, implementation="mosaic_tpu", interpret=True
  )
  with pytest.raises(ValueError) as raised:
    jax.eval_shape(read, pending, projection)
  assert words in str(raised.value)


def test_shapes_that_do_not_fit_are_named():
  pending = Pending(jnp.zeros((2, 3, 8)), jnp.zeros((5, 3)), jnp.zeros((3, 8)))
  with pytest.raises(ValueError, match=r"pending.weights has shape \(5, 3\).* need \(6, 3\)"):
    stream_read(pending, None, (), free)
  pending = pending._replace(weights=jnp.zeros((6, 3)))
  with pytest.raises(ValueError, match=r"projection has shape \(3, 8, 4\)"):
    stream_read(pending, jnp.zeros((3, 8, 4)), (), free)
  with pytest.raises(ValueError, match="implementation='cuda' of residual streams is not known"):
    stream_read(pending, None, (), free, implementation="cuda")


@needs_libtpu
@pytest.mark.slow
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize("chip, count", [*((c, 4) for c in TPU_CHIPS if c != "v4"), ("v5p", 2)])
def test_kernels_compile_for_absent_chips(chip, count):
  devices = absent_devices.describe({"v5p": "v5p-8", "tpu7x": "tpu7x-8"}.get(chip, f"{chip}-1"))
  mesh = Mesh(np.array(devices.devices[:1]).reshape(1, 1, 1, 1), MESH_AXES,
              axis_types=(AxisType.Auto,) * 4)  # fmt: skip
  layout = Layout(mesh)

  def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(*[None] * len(shape)))

  columns, held = 2 * count + count**2, functools.partial(array, dtype=jnp.bfloat16)
  pending = Pending(
    held(count, 1, 1024, 2048), array(count * (count + 1), 1, 1024), held(1, 1024, 2048)
  )

  def loss(pending, projection, bias, gain):
    mix = functools.partial(sinkhorn, 20)
    found = stream_read(
      pending, projection, (bias,), functools.partial(constrained, mix), norm_gain=gain,
      layout=layout, implementation="mosaic_tpu",
    )  # fmt: skip
    return sum(jnp.sum(jnp.sin(x.astype(jnp.float32))) for x in found)

  arguments = pending, array(count, 2048, columns), array(columns), array(2048)
  compiled = jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(*arguments).compile()
  assert compiled.as_text().count('custom_call_target="tpu_custom_call"') == 2
