from . import block as block
from . import direct as direct
from . import merge as merge
