"""Checksums of arrays: the formula in NumPy, the same on every mesh, no bit overlooked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from resjax.base import checksums
from resjax.base.sharding import MeshConfig, make_mesh

DTYPES = ("float32", "bfloat16", "float16", "int32", "uint32", "int8", "uint8", "bool")


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
  found = np.random.default_rng(0).integers(0, 100, shape)
  return np.asarray(found % 2 if dtype == "bool" else found).astype(jnp.dtype(dtype))


def checksum(x) -> str:
  return checksums.record({"x": x})["x"]["checksum"]


def by_numpy(x: np.ndarray) -> str:
  """The published mixers, element by element, with Python's integers."""

  def mix(h: int, first: int, second: int) -> int:
    h = (h ^ h >> 16) * first % 2**32
    h = (h ^ h >> 13) * second % 2**32
    return h ^ h >> 16

  bits = x.reshape(-1).view(f"u{min(x.itemsize, 4)}")
  high = low = 0
  for index, value in enumerate(bits.tolist()):
    key = mix(index, 0x85EBCA6B, 0xC2B2AE35)
    high += mix(value ^ key, 0x85EBCA6B, 0xC2B2AE35)
    low += mix((value + key) % 2**32, 0x7FEB352D, 0x846CA68B)
  return f"{high % 2**32:08x}{low % 2**32:08x}"


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_formula(dtype, shape):
  x = values(dtype, shape)
  assert checksum(jnp.asarray(x)) == by_numpy(x)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_elements_of_eight_bytes(dtype):
  with jax.enable_x64(True):
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(dtype)
    assert checksum(jnp.asarray(x)) == by_numpy(x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_does_not_depend_on_mesh_and_sharding(dtype):
  x = values(dtype, (16, 8, 24))
  wanted = by_numpy(x)
  specs = ["", "data", "data,fsdp", ",fsdp,tensor", "data+fsdp+tensor", ",data+tensor,fsdp"]
  for sizes in ({}, {"fsdp": 2}, {"data": 2, "fsdp": 2, "tensor": 2}):
    mesh = make_mesh(MeshConfig(**sizes))
    for spec in specs:
      axes = [tuple(axis.split("+")) if axis else None for axis in spec.split(",")]
      x_there = jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))
      assert checksum(x_there) == wanted, (sizes, spec)
  for devices in (1, 2, 4):
    mesh = make_mesh(MeshConfig(), jax.devices()[-devices:])
    assert checksum(jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))) == wanted


def test_every_flipped_bit_and_every_swap_changes_it():
  x = np.random.default_rng(0).standard_normal(40).astype(np.float32)
  changed = []
  for bit in range(32 * x.size):
    y = x.copy()
    y.view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)
    changed.append(y)
  for i in range(x.size):
    for j in range(i):
      y = x.copy()
      y[[i, j]] = x[[j, i]]
      changed.append(y)
  stacked = jnp.asarray(np.stack([x, *changed]))
  sums = np.asarray(jax.jit(jax.vmap(checksums.of_array))(stacked))
  assert (sums[1:] != sums[0]).any(axis=1).all()
  assert (sums[1 : 1 + 32 * x.size] != sums[0]).all()  # one element: both sums
  assert len(np.unique(sums, axis=0)) == len(sums)


def test_needs_no_memory_and_gathers_nothing():
  mesh = make_mesh(MeshConfig(fsdp=4, tensor=2))
  sharding = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
  x = jax.ShapeDtypeStruct((1024, 2048), jnp.float32, sharding=sharding)
  compiled = jax.jit(checksums.of_array).lower(x).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 10_000
  gathered = [line for line in compiled.as_text().splitlines() if "all-gather(" in line]
  assert not [line for line in gathered if "1024" in line or "2048" in line]


def test_differences_are_words():
  saved = checksums.record({"a": jnp.zeros((2, 3)), "b": [jnp.zeros(4, jnp.int32)]})
  wanted = {"a": jnp.zeros((2, 3)), "b": [jnp.zeros(5, jnp.int32)], "c": jnp.zeros(())}
  assert checksums.differences(saved, wanted) == [
    "b/0 is int32[4] there and int32[5] here",
    "c is missing there and float32[] here",
  ]
