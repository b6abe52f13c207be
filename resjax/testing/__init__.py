"""What authors of combinators test theirs with.

from resjax.testing import check_combinator

check_combinator("my_system")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
