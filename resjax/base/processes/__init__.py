"""Several processes as one run: how they meet, agree, stop and end; a watchdog for each.

from resjax.base import processes

processes.initialize(bringup_seconds=300, heartbeat_seconds=100)
seed = processes.first("seed", lambda: 7)  # what process 0 says
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
