"""Calls of LAPACK, and what StableHLO has of it, as text: examples for the definitions."""

from __future__ import annotations


def call(function: str, given: str, found: str, config: str = "") -> str:
    """A call of LAPACK; types are separated by ", ", options are `name=letter` or `name=true`."""
    operands = [f"tensor<{t}>" for t in given.split(", ")]
    results = [f"tensor<{t}>" for t in found.split(", ")]
    letter = (
        ("c" if "f32" in given else "z") if "complex" in given else "s" if "f32" in given else "d"
    )
    matrix = _rank(given.split(", ")[0])
    options = ", ".join(
        f"{name} = " + (f"{ord(value)} : ui8" if len(value) == 1 else value)
        for name, value in (pair.split("=") for pair in config.split())
    )
    values = [f"%r#{k}" for k in range(len(results))] if len(results) > 1 else ["%r"]
    several = f":{len(results)}" if len(results) > 1 else ""
    parameters = [f"%a{k}: {t}" for k, t in enumerate(operands)]
    return (
        f"func.func @main({', '.join(parameters)}) -> ({', '.join(results)}) {{\n"
        f"  %r{several} = stablehlo.custom_call @lapack_{letter}{function}_ffi("
        f"{', '.join(p.partition(':')[0] for p in parameters)}) "
        f'{{backend_config = "", mhlo.backend_config = {{{options}}}, '
        f"operand_layouts = [{_layouts(given, matrix)}], "
        f"result_layouts = [{_layouts(found, matrix)}]}} : "
        f"({', '.join(operands)}) -> ({', '.join(results)})\n"
        f"  return {', '.join(values)} : {', '.join(results)}\n}}\n"
    )


def _layouts(types: str, matrix: int) -> str:
    """Those that LAPACK wants: the columns of what has rank `matrix` one behind the other."""
    found = []
    for text in types.split(", "):
        rank = _rank(text)
        order = [*range(rank)][::-1]
        if rank == matrix:
            order[:2] = order[1::-1]
        found.append(f"dense<{order if rank else '[]'}> : tensor<{rank}xindex>")
    return ", ".join(found)


def _rank(text: str) -> int:
    return text.replace("complex", "").count("x")


def in_stablehlo(op: str, given: str, found: str, attributes: str) -> str:
    operands = [f"tensor<{t}>" for t in given.split(", ")]
    names = [f"%a{k}" for k in range(len(operands))]
    parameters = ", ".join(f"{n}: {t}" for n, t in zip(names, operands, strict=True))
    return (
        f"func.func @main({parameters}) -> tensor<{found}> {{\n"
        f'  %r = "stablehlo.{op}"({", ".join(names)}) {{{attributes}}} : '
        f"({', '.join(operands)}) -> tensor<{found}>\n"
        f"  return %r : tensor<{found}>\n}}\n"
    )


def numbers_of(matrix: str, length: str = "") -> str:
    """The type of an integer, or of so many, for each matrix of a batch."""
    return "x".join((*matrix.split("x")[:-3], *filter(None, (length,)), "i32"))


def factors_of(matrix: str, length: str) -> str:
    return "x".join((*matrix.split("x")[:-3], length, matrix.split("x")[-1]))


COMPLEX = (("7x3x3xcomplex<f32>", "7x"), ("2x2x4x4xcomplex<f64>", "2x2x"), ("1x1xcomplex<f32>", ""))
SQUARE = ("7x3x3xf32", "2x2x8x8xf64", "1x1xf32", "0x4x4xf32")


def solve_examples() -> tuple[str, ...]:
    sides = (
        f"side={s} uplo={u} trans_x={t} diag={d}"
        for s in "LR"
        for u in "LU"
        for t in "NT"
        for d in "NU"
    )
    shapes = ("5x3x3xf32, 5x3x2xf32", "5x3x3xf32, 5x2x3xf32")
    return (
        *(
            call(
                "trsm",
                shapes[side.startswith("side=R")],
                shapes[side.startswith("side=R")].split(", ")[1],
                side,
            )
            for side in sides
        ),
        *(
            call("trsm", f"3x7x7xf64, {right}xf64", f"{right}xf64", side)
            for right, side in (
                ("3x7x4", "side=L uplo=L trans_x=N diag=N"),
                ("3x7x4", "side=L uplo=L trans_x=T diag=U"),
                ("3x4x7", "side=R uplo=U trans_x=N diag=N"),
            )
        ),
        call("trsm", "4x4xf64, 4x40xf64", "4x40xf64", "side=L uplo=L trans_x=N diag=N"),
        *(
            call(
                "trsm",
                "5x3x3xcomplex<f32>, 5x3x3xcomplex<f32>",
                "5x3x3xcomplex<f32>",
                f"side={s} uplo=L trans_x={t} diag=N",
            )
            for s in "LR"
            for t in "NTC"
        ),
        call(
            "trsm",
            "4x4xcomplex<f64>, 4x40xcomplex<f64>",
            "4x40xcomplex<f64>",
            "side=L uplo=U trans_x=C diag=U",
        ),
    )
