"""The optimizer: its settings, its learning rate, and what it does with each parameter."""

from resjax.optim.config import OptimizerConfig as OptimizerConfig
from resjax.optim.optimizer import make_optimizer as make_optimizer
from resjax.optim.schedules import schedule as schedule
from resjax.optim.schedules import steps_before_decay as steps_before_decay
from resjax.optim.schedules import warmup_steps as warmup_steps
from resjax.optim.table import ParameterRow as ParameterRow
from resjax.optim.table import Scaling as Scaling
from resjax.optim.table import check_combinator_factors as check_combinator_factors
from resjax.optim.table import column as column
from resjax.optim.table import parameter_rows as parameter_rows
