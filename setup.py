"""The packages of the wheel: `launch` and `configs` lie inside `resjax.shipped` there."""

from setuptools import find_packages, setup

SHIPPED = ("launch", "configs")

setup(
  packages=[
    *find_packages(include=["resjax", "resjax.*"]),
    *(f"resjax.shipped.{name}" for name in find_packages(include=[f"{n}*" for n in SHIPPED])),
  ],
  package_dir={f"resjax.shipped.{name}": name for name in SHIPPED},
)
