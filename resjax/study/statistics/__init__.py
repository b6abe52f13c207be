"""Statistics of comparisons: arms that were run with the same seeds, and proportions.

from resjax.study.statistics import Contrast, compare

compare(values, [Contrast("attn_res", "standard")])  # values[arm][seed]
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
