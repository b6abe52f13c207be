"""Bridges to other libraries and formats."""
