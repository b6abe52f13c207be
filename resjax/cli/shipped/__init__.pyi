from . import completion as completion
from .places import config_file as config_file
from .places import config_names as config_names
from .places import imports_of as imports_of
from .places import make_launchers_importable as make_launchers_importable
from .places import make_own_importable as make_own_importable
from .places import root as root
