from . import analysis as analysis
from . import config_tree as config_tree
from . import evaluation as evaluation
from . import statistics as statistics
from . import sweeps as sweeps
from .trained_model import TrainedModel as TrainedModel
