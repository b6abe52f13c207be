from . import huggingface as huggingface
from . import linen as linen
from . import lm_eval as lm_eval
from .linen import Layers as Layers
from .linen import Residual as Residual
from .linen import ResidualStream as ResidualStream
from .linen import combinator as combinator
