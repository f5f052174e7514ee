"""How a program is called: plainly, or by what must give the same (the metamorphic families)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzing.program import Program, Text

MODES = {
    "plain": 8,
    "cut": 4,
    "refused": 3,
    "around": 3,
    "vmap": 2,
    "scan": 2,
    "while": 2,
    "cond": 2,
    "grad": 4,
    "jvp": 1,
    "threads": 1,
    "donated": 4,
    "module": 3,
    "rows": 2,
    "deterministic": 2,
    "shared": 2,
    "sharded": 1,
    "ahead": 1,
    "file": 2,
    "routed": 1,
}
"""Modes and how often they are drawn.

`around`: control flow stays with XLA, its bodies are compiled; `cut`: groups of steps are compiled
one by one; `refused`: some clusters of one compiled function stay with XLA (refusing.py); `module`:
it comes as StableHLO, of open extents where that goes; `scan`, `while`, `cond`: of a single trip,
or of two branches that are the same; `rows`: kernels serve any number of rows; `shared`: arguments
of one type are one array; `sharded`: under `shard_map`; `jvp`: also linearized, or of a gradient.
"""
WAYS = {
    "module": "through_module",
    "ahead": "ahead_of_time",
    "file": "through_file",
    "routed": "in_place_of_jit",
}
"""Modes that are other ways to a compiled function (ways.py)."""

SAME_AS_PLAIN = (
    "cut",
    "refused",
    "around",
    "scan",
    "while",
    "cond",
    "threads",
    "donated",
    "rows",
    "deterministic",
    *WAYS,
)
"""Modes whose results are those of the plain program."""


def build_text(program: Program, text: Text) -> list[str]:
    """The lines of `build(kernel)`, which makes what is called with the program's inputs."""
    names = ", ".join(i.name for i in program.inputs)
    numbers = program.mode_numbers
    inside = numbers[0] % 2  # whether the loop is compiled too, or only its body
    mode = program.mode
    if mode == "donated":
        donated = [k for k in range(len(program.inputs)) if numbers[k % len(numbers)] % 3] or [0]
        return _build(f"return kernel(program, donate_argnums={tuple(donated)})")
    if mode == "rows":
        return _build("return kernel(program, any_rows=True)")
    if mode == "deterministic":
        return _build("return kernel(program, deterministic=True)")
    if mode == "around":
        return _build("return jax.jit(lambda *args: program(*args, kernel=kernel))")
    if mode in WAYS:
        return _build(f"return {WAYS[mode]}(kernel, program)")
    if mode == "shared":
        first = {(i.dtype, i.shape): i.name for i in reversed(program.inputs)}
        given = ", ".join(first[i.dtype, i.shape] for i in program.inputs)
        return _build("compiled = kernel(program)", f"return lambda {names}: compiled({given})")
    if mode == "sharded":
        mapped = (
            "jax.shard_map({}, mesh=jax.make_mesh((1,), ('rows',)), "
            "in_specs=jax.sharding.PartitionSpec(), out_specs=jax.sharding.PartitionSpec(), "
            "check_vma=False)"
        )
        return _build(_outside(mapped, inside))
    if mode == "vmap":
        axes = tuple(0 if one else None for one in are_stacked(program))
        return _build(
            _outside(f"jax.vmap({{}}, in_axes={axes}, out_axes={-(numbers[2] % 2)})", inside)
        )
    if mode == "scan":
        body = "lax.scan(lambda _, xs: (0, {}(*xs)), 0, tuple(x[None] for x in args))[1]"
        return _build(*_wrapped(body, inside, "[r[0] for r in {}]"))
    if mode == "while":
        zeros = ", ".join(_zeros(text, name) for name in program.outputs)
        body = (
            f"lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, {{}}(*args)), "
            f"(0, ({zeros},)))[1]"
        )
        return _build(*_wrapped(body, inside, "{}"))
    if mode == "cond":
        flag = "True" if numbers[1] % 2 else "False"
        body = f"lax.cond(lax.optimization_barrier({flag}), {{0}}, {{0}}, *args)"
        return _build(*_wrapped(body, inside, "{}"))
    if mode in ("grad", "jvp"):
        return _differentiated(program, numbers)
    if mode == "cut":
        return _cut(program, text, names)
    # Threads call it side by side; what is refused is decided while it is compiled.
    return _build("return kernel(program)")


def are_stacked(program: Program) -> list[bool]:
    """Of which inputs the mode `vmap` is given several: of the first, and of others by chance."""
    numbers = program.mode_numbers
    return [not k or numbers[k % len(numbers)] % 4 != 3 for k in range(len(program.inputs))]


def _outside(mapped: str, inside: int) -> str:
    """A transformation of what is compiled, or within that."""
    if inside:
        return f"return kernel({mapped.format('program')})"
    return f"return jax.jit({mapped.format('kernel(program)')})"


def _build(*lines: str) -> list[str]:
    return ["def build(kernel):", *(f"    {line}" for line in lines)]


def _wrapped(body: str, inside: int, results: str) -> list[str]:
    called = body.format("program" if inside else "kernel(program)")
    outer = "kernel" if inside else "jax.jit"
    return [f"return {outer}(lambda *args: {results.format(called)})"]


def _zeros(text: Text, name: str) -> str:
    value = text.values[name]
    return f"jnp.zeros({value.shape}, {value.dtype!r})"


def _differentiated(program: Program, numbers: tuple[int, ...]) -> list[str]:
    floats = [k for k, i in enumerate(program.inputs) if i.kind == "f"]
    marked = ", ".join(f"args[{k}]" for k in floats)
    rest = ", ".join(
        f"xs[{floats.index(k)}]" if k in floats else f"args[{k}]"
        for k in range(len(program.inputs))
    )
    called = "jax.checkpoint(program)" if numbers[1] % 3 == 0 else "program"
    inner = f"kernel({called})" if numbers[0] % 3 == 0 else called
    lines = [
        "def of_floats(args, *xs):",
        f"    results = {inner}({rest})",
        "    return [r for r in results if jnp.issubdtype(r.dtype, jnp.floating)]",
        "",
    ]
    if program.mode == "jvp":
        ones, results = "tuple(jnp.ones_like(x) for x in xs)", "lambda *xs: of_floats(args, *xs)"
        total = "lambda *xs: sum(map(jnp.sum, of_floats(args, *xs)))"
        lines += ["def derivative(*args):", f"    xs = ({marked},)"]
        lines += {
            1: [
                f"    results, push = jax.linearize({results}, *xs)",
                f"    return results, push(*{ones})",
            ],
            2: [f"    return jax.jvp(jax.grad({total}, {tuple(range(len(floats)))}), xs, {ones})"],
        }.get(numbers[2] % 4, [f"    return jax.jvp({results}, xs, {ones})"])
    else:
        lines += [
            "def derivative(*args):",
            f"    results, pull = jax.vjp(lambda *xs: of_floats(args, *xs), {marked})",
            "    return results, pull([jnp.ones_like(r) for r in results])",
        ]
    outer = "jax.jit" if inner.startswith("kernel") else "kernel"
    return _build(*lines, f"return {outer}(derivative)")


def _cut(program: Program, text: Text, names: str) -> list[str]:
    """Groups of steps, each compiled by itself; the first number says how long they are."""
    most = (1, 1, 2, 3, 5)[program.mode_numbers[0] % 5]
    known = [i.name for i in program.inputs]
    lines = [f"def run({names}):"]
    steps = list(zip(program.steps, text.lines, strict=True))
    for begin in range(0, len(steps), most):
        group = steps[begin : begin + most]
        made = [r for step, _ in group for r in step.results]
        read = [
            n for n in dict.fromkeys(o for step, _ in group for o in step.operands) if n in known
        ]
        lines += [
            f"    def part({', '.join(read)}):",
            *(f"        {line}" for _, line in group),
            f"        return ({', '.join(made)},)",
            f"    {', '.join(made)}, = kernel(part)({', '.join(read)})",
        ]
        known += made
    return _build(*lines, f"    return ({', '.join(program.outputs)},)", "return jax.jit(run)")
