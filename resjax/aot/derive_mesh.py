"""Derives entries of a mesh from the number of devices, where a config's mesh does not fit."""

import dataclasses

from resjax.base.sharding import MeshConfig


def derive(mesh: MeshConfig, devices: int, num_slices: int = 1) -> MeshConfig:
  """Returns a mesh for a number of devices: fsdp no larger than a slice, and data all that remain.

  data = devices / (fsdp · expert · tensor · sequence). A mesh that has all devices is left as it
  is, and so is one that leaves a remainder, which `make_mesh` refuses.

  Args:
    mesh: the mesh of a config, perhaps made for another number of devices.
    devices: the number of devices of all slices.
    num_slices: the number of slices, which `data` joins.
  """
  inner = mesh.expert * mesh.tensor * mesh.sequence
  if inner < 1 or mesh.fsdp < 1 or mesh.data * mesh.fsdp * inner == devices:
    return mesh
  fsdp = min(mesh.fsdp, devices // num_slices // inner)
  if fsdp < 1 or devices % (fsdp * inner):
    return mesh
  found = dataclasses.replace(mesh, data=devices // (fsdp * inner), fsdp=fsdp)
  return mesh if mesh.data == -1 and fsdp == mesh.fsdp else found


def flags(mesh: MeshConfig, other: MeshConfig) -> str:
  """Returns the entries of `mesh` that `other` does not have, as flags; empty if there are none."""
  theirs = dataclasses.asdict(other)
  changed = {key: n for key, n in dataclasses.asdict(mesh).items() if n != theirs[key]}
  return " ".join(f"--config.mesh.{key}={n}" for key, n in changed.items())
