"""Runs several processes of one program on this machine."""
