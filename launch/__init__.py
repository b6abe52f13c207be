"""How to run it: the commands of resjax."""
