"""What a run writes as it goes: metrics, progress, step times, where its time went.

from resjax.base.records import METRICS_FILE, read_table

losses = read_table(workdir / METRICS_FILE)["loss"]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
