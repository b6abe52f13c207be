"""What authors of combinators test theirs with: `check_combinator`."""

from resjax.testing.checks import CHECKS as CHECKS
from resjax.testing.combinator import check_combinator as check_combinator
