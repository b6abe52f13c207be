from .asked import by_level as by_level
from .tasks import Task as Task
