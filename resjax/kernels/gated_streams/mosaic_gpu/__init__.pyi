from . import backward as backward
from . import forward as forward
from . import obstacles as obstacles
from . import plan as plan
