"""What states along depth say: alignment, lenses, attribution, interventions, patching.

from resjax.study.analysis import attribute

attribution = attribute(decoder, tokens)  # what each write adds to the logit of the next token
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
