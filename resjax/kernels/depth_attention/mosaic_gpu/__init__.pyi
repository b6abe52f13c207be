from . import block_backward as block_backward
from . import block_forward as block_forward
from . import direct_backward as direct_backward
from . import direct_forward as direct_forward
from . import merge_backward as merge_backward
from . import merge_forward as merge_forward
from . import obstacles as obstacles
