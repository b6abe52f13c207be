"""The version of resjax."""

__version__ = "0.2.0"
