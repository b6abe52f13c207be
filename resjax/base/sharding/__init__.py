"""Mesh, rules from logical axes to mesh axes, and where arrays lie under both.

from resjax.base.sharding import MeshConfig, ShardingConfig, make_layout

layout = make_layout(MeshConfig(fsdp=4), ShardingConfig("fsdp"))
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
