"""How cost grows with size: `resjax bench growth`."""
