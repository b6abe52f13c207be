"""The packages of the wheel: `launch` and `configs` lie inside `resjax.cli.shipped` there.

Benchmarks measure a checkout and stay out of it.
"""

from setuptools import find_packages, setup

SHIPPED = {"include": ["launch*", "configs*"], "exclude": ["launch.bench*"]}

setup(
  packages=[
    *find_packages(include=["resjax", "resjax.*"]),
    *(f"resjax.cli.shipped.{name}" for name in find_packages(**SHIPPED)),
  ],
  package_dir={f"resjax.cli.shipped.{name}": name for name in ("launch", "configs")},
)
