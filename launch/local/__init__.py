"""Several processes of one program on this machine."""
