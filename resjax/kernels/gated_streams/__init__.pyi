from .api import gated_read as gated_read
from .operands import Operands as Operands
from .operands import Read as Read
