"""What a compiled program tells of itself: products, exchanges and traffic, from its text (HLO).

`hlo` reads the text into computations and instructions, `hlo_integers` and `hlo_calls` find out how
often each of them runs, `matrix_flops`, `collectives` and `moved_bytes` count what they do. These
import nothing of resjax. `parts`, `passes` and `depth_floor` know the scopes of a training step and
its residual systems, and `read_step` puts all together for `resjax aot`.
"""
