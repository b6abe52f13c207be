"""What all rooms stand on: paths, JSON, settings, terminal, chips, mesh, processes, records.

from resjax.base import locations, typed_json

place = locations.path("gs://bucket/run", "config.workdir")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
