"""jit for small tests: the same program and memory plan, machine code left unoptimised."""

import functools

import jax

COMPILER_OPTIONS = {"xla_backend_optimization_level": 0}
jit = functools.partial(jax.jit, compiler_options=COMPILER_OPTIONS)
