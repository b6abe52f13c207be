from .checks import CHECKS as CHECKS
from .combinator import check_combinator as check_combinator
