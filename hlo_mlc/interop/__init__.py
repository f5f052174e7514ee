"""The faces towards JAX: `mlc_jit`, `compile_stablehlo`, and the call primitive behind them."""
