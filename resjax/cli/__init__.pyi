from . import actions as actions
from . import shipped as shipped
from .actions import Experiment as Experiment
from .actions import Pretrained as Pretrained
