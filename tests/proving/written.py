"""Programs of ops with regions, or of few forms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir
from jaxlib.mlir import ir

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph
from proving.inputs import all_bits, every, far_apart, grid, unit_vectors
from proving.program import Program


@cache
def _context() -> ir.Context:
    """In which all of them are read: it takes longer to make than to read one."""
    return mlir.make_ir_context()


@cache
def written(arguments: str, result: str, body: str) -> Graph:
    """A function whose last value is %r, or what `body` returns; read once for all rules."""
    end = "" if "func.return" in body else f"\nfunc.return %r : {result}"
    return import_function(
        parse_module(f"func.func @main({arguments}) -> ({result}) {{\n{body}{end}\n}}", _context())
    )


_X = "tensor<3xf32>"
_UPDATE = "(tensor<3xf32>, tensor<1xf32>, tensor<i64>) -> tensor<3xf32>"
_SCATTER = """"stablehlo.scatter"(%x, %k, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
    update_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0>}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %o = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %o : tensor<f32>
    }) : (tensor<3xf32>, tensor<1xi64>, tensor<1xf32>) -> tensor<3xf32>"""
# What a branch computes as %r of arrays, of an array of one, and of places.
_BRANCHES = (
    f"%r = stablehlo.add %x, %x : {_X}",
    f"%r = stablehlo.negate %y : {_X}",
    f"%r = stablehlo.constant dense<7.0> : {_X}",
    f"%r = stablehlo.dynamic_update_slice %x, %u, %i : {_UPDATE}",
    f"""%n = stablehlo.negate %u : tensor<1xf32>
        %m = stablehlo.dynamic_update_slice %x, %u, %i : {_UPDATE}
        %r = stablehlo.dynamic_update_slice %m, %n, %j : {_UPDATE}""",
    f"""%k = stablehlo.reshape %i : (tensor<i64>) -> tensor<1xi64>
        %r = {_SCATTER}""",
)


def branching(op: str) -> Iterator[Program]:
    """A choice, known or not, between two or three branches."""
    arguments = f"%x: {_X}, %y: {_X}, %u: tensor<1xf32>, %i: tensor<i64>, %j: tensor<i64>"
    kind, known = ("i1", ("true", "false")) if op == "stablehlo.if" else ("i32", (-1, 0, 2))
    for one, other in itertools.product(range(len(_BRANCHES)), repeat=2):
        third = (one + other) % len(_BRANCHES)
        for numbers in ((one, other),) if op == "stablehlo.if" else ((one,), (one, other, third)):
            chosen = [_BRANCHES[n] for n in numbers]
            regions = ", ".join(f"{{{body}\nstablehlo.return %r : {_X}}}" for body in chosen)
            choices = [f"%c = stablehlo.constant dense<{k}> : tensor<{kind}>" for k in known]
            for choice in ("", *(choices if one == other else ())):
                more = "" if choice else f", %c: tensor<{kind}>"
                yield Program(
                    written(
                        arguments + more,
                        _X,
                        f"""{choice}
                    %r = "{op}"(%c) ({regions}) : (tensor<{kind}>) -> {_X}""",
                    ),
                    every,
                )


def counted(op: str) -> Iterator[Program]:
    """Loops of no, one and some trips, with what goes round in them."""
    bodies = (
        f"%s = stablehlo.add %p, %q : {_X}\nstablehlo.return %n, %s, %p",
        "stablehlo.return %n, %q, %p",
        f"""%t = stablehlo.iota dim = 0 : {_X}
                  %f = stablehlo.convert %i : (tensor<i32>) -> tensor<f32>
                  %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {_X}
                  %s = stablehlo.multiply %t, %g : {_X}
                  %w = stablehlo.subtract %s, %p : {_X}
                  stablehlo.return %n, %w, %s""",
    )
    for first, limit, step, body in itertools.product((0, 2), (0, 1, 5, 9), (1, 3), bodies):
        yield Program(
            written(
                f"%x: {_X}, %y: {_X}",
                f"{_X}, {_X}",
                f"""
            %c = stablehlo.constant dense<{first}> : tensor<i32>
            %r:3 = "stablehlo.while"(%c, %x, %y) ({{
            ^bb0(%i: tensor<i32>, %p: {_X}, %q: {_X}):
              %l = stablehlo.constant dense<{limit}> : tensor<i32>
              %b = stablehlo.compare LT, %i, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %b : tensor<i1>
            }}, {{
            ^bb0(%i: tensor<i32>, %p: {_X}, %q: {_X}):
              %d = stablehlo.constant dense<{step}> : tensor<i32>
              %n = stablehlo.add %i, %d : tensor<i32>
              {body} : tensor<i32>, {_X}, {_X}
            }}) : (tensor<i32>, {_X}, {_X}) -> (tensor<i32>, {_X}, {_X})
            func.return %r#1, %r#2 : {_X}, {_X}""",
            ),
            every,
        )


def scans(op: str) -> Iterator[Program]:
    """From either end along any axis, of no, one and some elements; sums and products too."""
    shapes = ((0, 2), (1, 2), (3, 2), (2, 3))
    for shape, axis, reverse in itertools.product(shapes, (0, 1), (False, True)):
        whole, state = (
            f"tensor<{'x'.join(map(str, s))}xf32>"
            for s in (shape, shape[:axis] + shape[axis + 1 :])
        )
        attributes = " attributes {is_reverse = true}" if reverse else ""
        yield Program(
            written(
                f"%x: {whole}, %s: {state}",
                f"{whole}, {state}",
                f"""
            %r:2 = chlo.scan(%x) inits(%s) dimension={axis}{attributes} {{
            ^bb0(%a: {state}, %c: {state}):
              %n = stablehlo.subtract %a, %c : {state}
              stablehlo.return %c, %n : {state}, {state}
            }} : ({whole}, {state}) -> ({whole}, {state})
            func.return %r#0, %r#1 : {whole}, {state}""",
            ),
            every,
        )
        for join, start in (("add", 0), ("multiply", 1)):
            yield Program(
                written(
                    f"%x: {whole}",
                    f"{whole}, {state}",
                    f"""
                %s = stablehlo.constant dense<{start}.0> : {state}
                %r:2 = chlo.scan(%x) inits(%s) dimension={axis} attributes
                    {{is_associative = true, is_reverse = {str(reverse).lower()}}} {{
                ^bb0(%a: {state}, %c: {state}):
                  %n = stablehlo.{join} %a, %c : {state}
                  stablehlo.return %n, %n : {state}, {state}
                }} : ({whole}, {state}) -> ({whole}, {state})
                func.return %r#0, %r#1 : {whole}, {state}""",
                ),
                every,
            )


def scattered(op: str) -> Iterator[Program]:
    """Updates of all there is, at places that are known, and of two arrays at once."""
    yield from at_known_places(op)
    yield from in_columns(op)
    yield from at_once(op)
    bodies = ["stablehlo.return %q", "stablehlo.return %p"]
    bodies += [
        f"%o = stablehlo.{name} {operands} : tensor<f32>\nstablehlo.return %o"
        for name in ("add", "subtract")
        for operands in ("%p, %q", "%q, %p", "%q, %q")
    ]
    for shape, body in itertools.product(((), (2,), (0, 2), (2, 3)), bodies):
        whole = f"tensor<{''.join(f'{n}x' for n in shape)}f32>"
        axes = ", ".join(map(str, range(len(shape))))
        yield Program(
            written(
                f"%a: {whole}, %b: {whole}, %i: tensor<0xi32>",
                whole,
                f"""
            %r = "stablehlo.scatter"(%a, %i, %b) <{{scatter_dimension_numbers =
              #stablehlo.scatter<update_window_dims = [{axes}]>}}> ({{
            ^bb0(%p: tensor<f32>, %q: tensor<f32>):
              {body} : tensor<f32>
            }}) : ({whole}, tensor<0xi32>, {whole}) -> {whole}""",
            ),
            every,
        )


def at_known_places(op: str) -> Iterator[Program]:
    """Updates of nothing, or of another number: rows of which each has one run or none, in any
    order, with places beyond the ends, twice the same, or apart."""
    kinds = (
        [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)],
        [(2, 1), (2, 2), (0, 2), (1, 0), (1, 1)],
        [(0, 0), (-1, 1), (1, 1), (1, 2), (1, 3)],
        [(0, 0), (0, 2), (1, 1)],
        [(0, 1), (0, 0), (2, 2)],
        [(0, 1), (0, 2), (0, 2)],
        [(row, place) for row in (2, 0, 1) for place in range(3)],
        [(1, 2)],
    )
    bodies = (
        "stablehlo.return %q",
        *(
            f"%o = stablehlo.{name} : tensor<f32>\nstablehlo.return %o"
            for name in ("add %p, %q", "subtract %q, %p")
        ),
    )
    for places, body, start, turned in itertools.product(kinds, bodies, ("0.0", "-0.0"), (0, 1)):
        count = len(places)
        dims = "[1, 2]" if not turned else "[2, 1]"
        rows = [list(place)[::-1] if turned else list(place) for place in places]
        yield Program(
            written(
                f"%u: tensor<2x{count}xf32>",
                "tensor<2x3x3xf32>",
                f"""
            %x = stablehlo.constant dense<{start}> : tensor<2x3x3xf32>
            %i = stablehlo.constant dense<{rows}> : tensor<{count}x2xi32>
            %r = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers =
              #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1, 2],
              scatter_dims_to_operand_dims = {dims}, index_vector_dim = 1>}}> ({{
            ^bb0(%p: tensor<f32>, %q: tensor<f32>):
              {body} : tensor<f32>
            }}) : (tensor<2x3x3xf32>, tensor<{count}x2xi32>, tensor<2x{count}xf32>)
              -> tensor<2x3x3xf32>""",
            ),
            every,
        )


def in_columns(op: str) -> Iterator[Program]:
    """Updates of rows or columns by numbers in columns, or in columns of two matrices."""
    kinds = (("4", "2x4", [1, 0], [2, 0, 2, -1]), ("2x2", "2x2x2", [0, 2, 1], [[2, 0], [0, 5]]))
    for rows, is_known, (of, turned, order, places) in itertools.product((0, 1), (0, 1), kinds):
        x, u = f"tensor<{('3x2', '2x3')[rows]}xf32>", f"tensor<{of}x2xf32>"
        t, i = f"tensor<{turned}xf32>", f"tensor<{of}xi32>"
        yield Program(
            written(
                f"%a: {x}, %u: {u}",
                x,
                f"""
            %c = stablehlo.constant dense<2.0> : {x}
            %i = stablehlo.constant dense<{places}> : {i}
            %t = stablehlo.transpose %u, dims = {order} : ({u}) -> {t}
            %r = "stablehlo.scatter"({("%a", "%c")[is_known]}, %i, %t) <{{
              scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [{rows}],
              update_window_dims = [{len(order) - 2}], scatter_dims_to_operand_dims = [{rows}],
              index_vector_dim = {len(order) - 1}>}}> ({{
            ^bb0(%p: tensor<f32>, %q: tensor<f32>):
              %o = stablehlo.subtract %q, %p : tensor<f32>
              stablehlo.return %o : tensor<f32>
            }}) : ({x}, {i}, {t}) -> {x}""",
            ),
            every,
        )


def at_once(op: str) -> Iterator[Program]:
    """Updates of two arrays, one of them known or not, at places of which one comes twice and one
    does not exist; with the last of the bodies, what is in one array goes into the other."""
    firsts = (
        "%f = stablehlo.subtract %n, %o : tensor<f32>",
        "%f = stablehlo.negate %n : tensor<f32>",
        "%f = stablehlo.constant dense<7.0> : tensor<f32>",
        "%t = stablehlo.convert %p : (tensor<i32>) -> tensor<f32>\n"
        "%f = stablehlo.maximum %t, %n : tensor<f32>",
    )
    seconds = ("%p", "%q", "%k")
    arrays, i = ("tensor<3x2xf32>", "tensor<3x2xi32>"), "tensor<4x1xi32>"
    rows, places = ("tensor<4x2xf32>", "tensor<4x2xi32>"), [[2], [0], [2], [3]]
    for first, second, is_known in itertools.product(firsts, seconds, (0, 1)):
        yield Program(
            written(
                f"%a: {arrays[0]}, %b: {arrays[1]}, %x: {rows[0]}, %y: {rows[1]}",
                ", ".join(arrays),
                f"""
            %c = stablehlo.constant dense<[[0, 1], [1, 0], [2, 1]]> : {arrays[1]}
            %i = stablehlo.constant dense<{places}> : {i}
            %r:2 = "stablehlo.scatter"(%a, {("%b", "%c")[is_known]}, %i, %x, %y) <{{
              scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
              inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
              index_vector_dim = 1>}}> ({{
            ^bb0(%o: tensor<f32>, %p: tensor<i32>, %n: tensor<f32>, %q: tensor<i32>):
              %k = stablehlo.constant dense<5> : tensor<i32>
              {first}
              stablehlo.return %f, {second} : tensor<f32>, tensor<i32>
            }}) : ({", ".join(arrays)}, {i}, {", ".join(rows)}) -> ({", ".join(arrays)})
            func.return %r#0, %r#1 : {", ".join(arrays)}""",
            ),
            every,
        )


def in_order(op: str) -> Iterator[Program]:
    """Rows of one, and others."""
    for shape, axis in (((3, 1), 1), ((1, 3), 0), ((1,), 0), ((3, 1), 0)):
        t = f"tensor<{'x'.join(map(str, shape))}xf32>"
        yield Program(
            written(
                f"%a: {t}, %b: {t}",
                f"{t}, {t}",
                f"""
            %r:2 = "stablehlo.sort"(%a, %b) <{{dimension = {axis} : i64, is_stable = true}}> ({{
            ^bb0(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<f32>, %q: tensor<f32>):
              %1 = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
              stablehlo.return %1 : tensor<i1>
            }}) : ({t}, {t}) -> ({t}, {t})
            func.return %r#1, %r#0 : {t}, {t}""",
            ),
            every,
        )


def of_sorted(op: str) -> Iterator[Program]:
    """Exact folds of what is computed of sorted rows, along these and across."""
    for axis, folded, fold, kind in itertools.product(
        (0, 1), (0, 1), ("add", "or", "and"), ("f32", "i32", "i1")
    ):
        if (fold == "add") == (kind == "i1"):
            continue
        # All pairs of bools of one row stand for all rows: each of them is sorted by itself.
        shape = [2, 3] if kind != "i1" else [3, 1] if axis == 0 else [1, 3]
        rows = "x".join(map(str, shape))
        t, u, s = f"tensor<{rows}x{kind}>", f"tensor<{rows}xi1>", f"tensor<{kind}>"
        r = f"tensor<{shape[1 - folded]}x{kind}>"
        number = "dense<true>" if kind == "i1" else "dense<4>" if kind == "i32" else "dense<4.0>"
        zero = "dense<false>" if kind == "i1" else "dense<0>" if kind == "i32" else "dense<0.0>"
        yield Program(
            written(
                f"%a: {t}, %b: {t}",
                r,
                f"""
            %s:2 = "stablehlo.sort"(%a, %b) <{{dimension = {axis} : i64, is_stable = true}}> ({{
            ^bb0(%x: {s}, %y: {s}, %p: {s}, %q: {s}):
              %1 = stablehlo.compare GT, %x, %y : ({s}, {s}) -> tensor<i1>
              stablehlo.return %1 : tensor<i1>
            }}) : ({t}, {t}) -> ({t}, {t})
            %n = stablehlo.constant {number} : {t}
            %l = stablehlo.compare LT, %s#0, %n : ({t}, {t}) -> {u}
            %m = stablehlo.compare NE, %s#0, %s#1 : ({t}, {t}) -> {u}
            %c = stablehlo.or %l, %m : {u}
            %k = stablehlo.convert %c : ({u}) -> {t}
            %z = stablehlo.constant {zero} : {s}
            %r = stablehlo.reduce(%k init: %z) applies stablehlo.{fold} across
              dimensions = [{folded}] : ({t}, {s}) -> {r}""",
            ),
            every,
        )


def repeated(op: str) -> Iterator[Program]:
    """Folds of what is the same along some of its dimensions, or along none."""
    for fold, (shape, places, wide) in itertools.product(
        ("add", "maximum"),
        (
            ((), (), (3, 2)),
            ((2,), (0,), (2, 3)),
            ((2, 1), (1, 2), (4, 2, 3)),
            ((1, 2), (0, 1), (3, 2)),
        ),
    ):
        for over in ((0,), (1,), tuple(range(len(wide)))):
            rest = [extent for d, extent in enumerate(wide) if d not in over]
            t, u, r = (
                f"tensor<{'x'.join([*map(str, one), 'f32'])}>" for one in (shape, wide, rest)
            )
            yield Program(
                written(
                    f"%a: {t}",
                    r,
                    f"""
                %k = stablehlo.broadcast_in_dim %a, dims = {list(places)} : ({t}) -> {u}
                %z = stablehlo.constant dense<0.0> : tensor<f32>
                %r = stablehlo.reduce(%k init: %z) applies stablehlo.{fold} across
                  dimensions = {list(over)} : ({u}, tensor<f32>) -> {r}""",
                ),
                unit_vectors,
            )


def sums_of_fewer_bits(op: str) -> Iterator[Program]:
    """Folds of integers and bools, read as integers of fewer bits, of as many, and as floats."""
    for source, wide, narrow, fold in itertools.product(
        ("i1", "ui8", "i16", "f32"),
        ("i16", "ui32", "f32"),
        ("i8", "ui8", "i32", "f32"),
        ("add", "maximum"),
    ):
        first = "7.0" if wide == "f32" else "7"
        t, u = f"tensor<2x3x{source}>", f"tensor<2x3x{wide}>"
        yield Program(
            written(
                f"%a: {t}",
                f"tensor<2x{narrow}>",
                f"""
            %k = stablehlo.convert %a : ({t}) -> {u}
            %z = stablehlo.constant dense<{first}> : tensor<{wide}>
            %s = stablehlo.reduce(%k init: %z) applies stablehlo.{fold} across dimensions = [1]
              : ({u}, tensor<{wide}>) -> tensor<2x{wide}>
            %r = stablehlo.convert %s : (tensor<2x{wide}>) -> tensor<2x{narrow}>""",
            ),
            every if source == "i1" else far_apart,
        )


def products(op: str) -> Iterator[Program]:
    """Products of bools, of integers of fewer bits, and those of which one factor is the same
    everywhere."""
    for m, k, n in ((1, 0, 2), (1, 3, 2), (2, 2, 2), (2, 3, 1)):
        left, right, result = f"tensor<{m}x{k}xi1>", f"tensor<{k}x{n}xi1>", f"tensor<{m}x{n}xi1>"
        yield Program(
            written(
                f"%a: {left}, %b: {right}",
                result,
                f"""
            %r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
              : ({left}, {right}) -> {result}""",
            ),
            every,
        )
    for one, other, wide in (
        *itertools.product(("i8", "ui8"), ("i8",), ("i16", "ui32")),
        ("ui8", "ui8", "i32"),
        ("i16", "i16", "i32"),
        ("i4", "i4", "i32"),
        ("i8", "i8", "f32"),
    ):
        a, b = f"tensor<2x3x{one}>", f"tensor<3x2x{other}>"
        left, right, result = (f"tensor<{n}x{wide}>" for n in ("2x3", "3x2", "2x2"))
        yield Program(
            written(
                f"%a: {a}, %b: {b}",
                result,
                f"""
            %x = stablehlo.convert %a : ({a}) -> {left}
            %y = stablehlo.convert %b : ({b}) -> {right}
            %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
              : ({left}, {right}) -> {result}""",
            ),
            lambda graph: itertools.chain(unit_vectors(graph), far_apart(graph)),
        )
    for dtype in ("f32", "i32", "bf16", "i1"):
        of, equal = f"tensor<2x3x2x{dtype}>", f"tensor<2x2x2x{dtype}>"
        one = "true" if dtype == "i1" else "2" if dtype == "i32" else "2.0"
        for given, axes in (
            (
                "%a, %c",
                f"batching_dims = [0] x [2], contracting_dims = [2] x [0] : ({of}, {equal})",
            ),
            (
                "%c, %a",
                f"batching_dims = [2] x [0], contracting_dims = [0] x [2] : ({equal}, {of})",
            ),
        ):
            shape = "2x3x2" if given[1] == "a" else "2x2x3"
            yield Program(
                written(
                    f"%a: {of}",
                    f"tensor<{shape}x{dtype}>",
                    f"""
            %c = stablehlo.constant dense<{one}> : {equal}
            %r = stablehlo.dot_general {given}, {axes} -> tensor<{shape}x{dtype}>""",
                ),
                unit_vectors,
            )
    each, row = "tensor<2x3xf32>", "tensor<2xf32>"
    yield Program(
        written(
            f"%a: {each}",
            each,
            f"""
            %c = stablehlo.constant dense<2.0> : {row}
            %r = stablehlo.dot_general %c, %a, batching_dims = [0] x [0], contracting_dims = [] x []
              : ({row}, {each}) -> {each}""",
        ),
        unit_vectors,
    )


def convolved(op: str) -> Iterator[Program]:
    """Of groups with windows of one; of inputs far apart."""
    apart = [
        (("NWC", "WIO", "NWC"), x, k, 1, {"padding": (padding,), "lhs_dilation": (steps,)})
        for steps in (9, 11)
        for x, k in (((1, 2, 1), (3, 1, 2)), ((2, 1, 2), (12, 2, 1)))
        for padding in ((0, 0), (3, 12), (-2, 4), (11, -3))
    ]
    apart += [
        (
            ("NCHW", "OIHW", "NCHW"),
            (1, 1, 2, 2),
            (1, 1, 2, 4),
            1,
            {"padding": padding, "lhs_dilation": (3, 4)},
        )
        for padding in (((0, 0), (1, 2)), ((2, -1), (4, 0)))
    ]
    grouped = [
        (numbers, x, k, 2, {"window_strides": strides})
        for numbers, x, k in (
            (("NHWC", "HWIO", "NHWC"), (2, 2, 3, 4), (1, 1, 2, 4)),
            (("HNCW", "OHWI", "CHWN"), (2, 1, 4, 3), (4, 1, 1, 2)),
        )
        for strides in ((1, 1), (2, 1), (1, 2))
    ]
    for numbers, x, k, groups, options in (*apart, *grouped):
        options = {
            "window_strides": (1,) * (len(x) - 2),
            "padding": ((0, 0),) * (len(x) - 2),
            **options,
        }

        def function(
            x: jax.Array, k: jax.Array, numbers=numbers, groups=groups, options=options
        ) -> jax.Array:
            return lax.conv_general_dilated(
                x, k, dimension_numbers=numbers, feature_group_count=groups, **options
            )

        shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (x, k)]
        yield Program(import_function(jax.jit(function).lower(*shapes).compiler_ir()), unit_vectors)


def split_and_joined(op: str) -> Iterator[Program]:
    """Bitcasts to other sizes: each element becomes others alone, so rows hold all of its bits."""
    sizes = {8: ("ui8", "i8"), 16: ("f16", "i16", "bf16")}
    for wide, narrow in itertools.product(sizes[16], sizes[8]):
        for source, result in (
            (f"65536x{wide}", f"65536x2x{narrow}"),
            (f"65536x2x{narrow}", f"65536x{wide}"),
        ):
            yield Program(
                written(
                    f"%a: tensor<{source}>",
                    f"tensor<{result}>",
                    f"""
                %r = stablehlo.bitcast_convert %a : (tensor<{source}>) -> tensor<{result}>""",
                ),
                all_bits,
            )


def compared_twice(op: str) -> Iterator[Program]:
    """Two comparisons, both of which hold, of all bytes."""
    for kind, first, second, operands in itertools.product(
        ("i8", "ui8", "f8E4M3FN"),
        ("LT", "GT", "LE", "NE"),
        ("NE", "LT", "EQ"),
        ("%x, %y", "%y, %x"),
    ):
        t, bools = f"tensor<65536x{kind}>", "tensor<65536xi1>"
        yield Program(
            written(
                f"%x: {t}, %y: {t}",
                bools,
                f"""
            %p = stablehlo.compare {first}, %x, %y : ({t}, {t}) -> {bools}
            %q = stablehlo.compare {second}, {operands} : ({t}, {t}) -> {bools}
            %r = stablehlo.and %p, %q : {bools}""",
            ),
            grid,
        )


def rounded_down(op: str) -> Iterator[Program]:
    """Quotients and remainders of all bytes, one less or more where a condition holds that may be
    the one for rounding down."""
    t, bools = "tensor<256xi8>", "tensor<256xi1>"
    for number in (-128, -64, *range(-4, 10), 16, 31, 32, 33, 63, 64, 65, 127):
        if number:
            same, other = number, number // 2 or 3
            for below, plus, sum_, added in (
                ("LT, %m, %0", "add", "%m, %d", same),
                ("LT, %m, %0", "add", "%d, %m", same),
                ("LT, %m, %0", "add", "%m, %d", other),
                ("LT, %x, %0", "add", "%m, %d", same),
                ("LT, %m, %1", "add", "%m, %d", same),
                ("LE, %m, %0", "add", "%m, %d", same),
                ("LT, %m, %0", "subtract", "%m, %d", same),
            ):
                yield Program(
                    written(
                        f"%x: {t}",
                        t,
                        f"""
                    %0 = stablehlo.constant dense<0> : {t}
                    %1 = stablehlo.constant dense<1> : {t}
                    %c = stablehlo.constant dense<{number}> : {t}
                    %d = stablehlo.constant dense<{added}> : {t}
                    %m = stablehlo.remainder %x, %c : {t}
                    %b = stablehlo.compare {below} : ({t}, {t}) -> {bools}
                    %s = stablehlo.{plus} {sum_} : {t}
                    %r = stablehlo.select %b, %s, %m : {bools}, {t}""",
                    ),
                    grid,
                )
            for signs, rest, both, one, by in (
                ("NE, %g, %1", "NE, %m, %0", "and %p, %b", 1, same),
                ("NE, %g, %1", "NE, %m, %0", "and %b, %p", 1, same),
                ("NE, %g, %1", "NE, %m, %0", "or %b, %p", 1, same),
                ("NE, %g, %0", "NE, %m, %0", "and %p, %b", 1, same),
                ("NE, %x, %1", "NE, %m, %0", "and %p, %b", 1, same),
                ("EQ, %g, %1", "NE, %m, %0", "and %p, %b", 1, same),
                ("NE, %g, %1", "NE, %m, %1", "and %p, %b", 1, same),
                ("NE, %g, %1", "NE, %m, %0", "and %p, %b", 2, same),
                ("NE, %g, %1", "NE, %m, %0", "and %p, %b", 1, other),
            ):
                yield Program(
                    written(
                        f"%x: {t}",
                        t,
                        f"""
                    %0 = stablehlo.constant dense<0> : {t}
                    %1 = stablehlo.constant dense<1> : {t}
                    %n = stablehlo.constant dense<{one}> : {t}
                    %c = stablehlo.constant dense<{number}> : {t}
                    %d = stablehlo.constant dense<{by}> : {t}
                    %q = stablehlo.divide %x, %c : {t}
                    %m = stablehlo.remainder %x, %d : {t}
                    %g = stablehlo.sign %x : {t}
                    %p = stablehlo.compare {signs} : ({t}, {t}) -> {bools}
                    %b = stablehlo.compare {rest} : ({t}, {t}) -> {bools}
                    %a = stablehlo.{both} : {bools}
                    %s = stablehlo.subtract %q, %n : {t}
                    %r = stablehlo.select %a, %s, %q : {bools}, {t}""",
                    ),
                    grid,
                )


def chosen_updates(op: str) -> Iterator[Program]:
    """A choice between an array and the same, updated at a place or two, or between others."""
    row, rows = "tensor<26xf32>", "tensor<2x13xf32>"
    arguments = "%u: tensor<1xf32>, %i: tensor<i64>, %j: tensor<i64>"
    added = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %o = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %o : tensor<f32> })"""
    updated = f"({row}, tensor<1xf32>, tensor<i64>) -> {row}"
    placed = f"%r0 = stablehlo.dynamic_update_slice %x, %u, %i : {updated}"
    scattered_ = f"""%k = stablehlo.reshape %j : (tensor<i64>) -> tensor<1xi64>
        %r1 = "stablehlo.scatter"(%r0, %k, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0>}}>
          {added} : ({row}, tensor<1xi64>, tensor<1xf32>) -> {row}"""
    in_batches = f"""%w = stablehlo.concatenate %u, %u, dim = 0 :
          (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
        %m = stablehlo.reshape %i : (tensor<i64>) -> tensor<1x1xi64>
        %n = stablehlo.reshape %j : (tensor<i64>) -> tensor<1x1xi64>
        %k = stablehlo.concatenate %m, %n, dim = 0 :
          (tensor<1x1xi64>, tensor<1x1xi64>) -> tensor<2x1xi64>
        %r0 = "stablehlo.scatter"(%x, %k, %w) <{{scatter_dimension_numbers = #stablehlo.scatter<
          inserted_window_dims = [1], input_batching_dims = [0],
          scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1],
          index_vector_dim = 1>}}>
          {added} : ({rows}, tensor<2x1xi64>, tensor<2xf32>) -> {rows}"""
    for (type_, lines, new), (chosen, along), sides in itertools.product(
        ((row, placed, "%r0"), (row, f"{placed}\n{scattered_}", "%r1"), (rows, in_batches, "%r0")),
        (("tensor<i1>", ""), ("tensor<1xi1>", "0"), ("tensor<2xi1>", "0")),
        ("{new}, %x", "%x, {new}", "%y, {new}"),
    ):
        truths = type_.replace("f32", "i1")
        if type_ == row and chosen == "tensor<2xi1>":
            continue
        yield Program(
            written(
                f"%x: {type_}, %y: {type_}, %p: {chosen}, {arguments}",
                type_,
                f"""{lines}
                %t = stablehlo.broadcast_in_dim %p, dims = [{along}] : ({chosen}) -> {truths}
                %r = stablehlo.select %t, {sides.format(new=new)} : {truths}, {type_}""",
            ),
            every,
        )
