"""The configs and commands that come with resjax: folders of a checkout, or of the wheel.

from resjax.cli import shipped

shipped.config_file("tiny")  # the path of configs/tiny.py
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
