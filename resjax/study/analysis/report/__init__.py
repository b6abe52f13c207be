"""A page of HTML about measurements of models, with figures and tables.

from resjax.study.analysis.report import page

page.write(results, folder)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
