from .api import stream_read as stream_read
from .doubly_stochastic import sinkhorn as sinkhorn
from .operands import Coefficients as Coefficients
from .operands import Operands as Operands
from .operands import Pending as Pending
from .operands import Read as Read
from .operands import written as written
from .reference import stream_coefficients as stream_coefficients
