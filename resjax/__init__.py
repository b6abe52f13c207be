"""resjax: how should information travel along the depth of a Transformer?"""

from resjax._version import __version__ as __version__
