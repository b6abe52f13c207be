"""Layouts with the rules of configs/base.py."""

from configs import base
from resjax.base.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout

SETS = tuple(name for name in base.sharding() if name != "name")


def sharding(name="fsdp_tp"):
  return ShardingConfig(name, Rules(**base.sharding()[name]))


def layout(name="fsdp_tp", devices=None, **mesh) -> Layout:
  """A layout over all devices, or some; `mesh` are fields of `MeshConfig`."""
  return make_layout(MeshConfig(**mesh), sharding(name), devices)
