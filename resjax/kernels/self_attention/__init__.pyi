from .api import IMPLEMENTATIONS as IMPLEMENTATIONS
from .api import causal_attention as causal_attention
from .operands import ALL_EARLIER as ALL_EARLIER
from .operands import PLAIN as PLAIN
from .operands import Scores as Scores
from .operands import Window as Window
from .reference import cached_attention as cached_attention
