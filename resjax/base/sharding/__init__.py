"""Mesh, rules from logical axes to mesh axes, and where arrays lie under both."""

from resjax.base.sharding.layout import Layout, make_layout
from resjax.base.sharding.mesh import MESH_AXES, MeshConfig, make_mesh
from resjax.base.sharding.rules import LOGICAL_AXES, Rules, ShardingConfig

__all__ = [
  "LOGICAL_AXES",
  "MESH_AXES",
  "Layout",
  "MeshConfig",
  "Rules",
  "ShardingConfig",
  "make_layout",
  "make_mesh",
]
