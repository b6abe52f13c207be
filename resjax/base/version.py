"""The version of resjax."""

__version__ = "0.3.0"
