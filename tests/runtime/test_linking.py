"""Linking: every way in which code refers to something, on both processors, and refusals."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from hlo_mlc.runtime.elf import read_object
from hlo_mlc.runtime.linking import Block, block_of
from hlo_mlc.runtime.relocations import MACHINES
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target import cpu

HERE = Path(__file__).parent
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
BASE, FAR = 0x4000_0000, 0x30_0000_0000  # further apart than any branch reaches

# Constants of each size, a table of addresses, one of jumps, calls inside and out of the object.
EVERYTHING = """
declare i64 @elsewhere(i64)
@words = private constant [4 x i16] [i16 3, i16 -5, i16 7, i16 11]
@longs = private constant [4 x i64] [i64 1000003, i64 -17, i64 29, i64 1099511627777]
@functions = private constant [2 x ptr] [ptr @twice, ptr @squared]
@bytes = private constant [4 x i8] c"\\05\\FA\\07\\42"

define internal i64 @twice(i64 %n) noinline nounwind {
  %m = shl i64 %n, 1
  ret i64 %m
}
define internal i64 @squared(i64 %n) noinline nounwind {
  %m = mul i64 %n, %n
  ret i64 %m
}
define i64 @kernel(i64 %n) nounwind {
entry:
  %slot = and i64 %n, 3
  %half = and i64 %n, 1
  %word.at = getelementptr [4 x i16], ptr @words, i64 0, i64 %slot
  %word = load i16, ptr %word.at
  %long.at = getelementptr [4 x i64], ptr @longs, i64 0, i64 %slot
  %long = load i64, ptr %long.at
  %byte.at = getelementptr [4 x i8], ptr @bytes, i64 0, i64 %slot
  %byte = load i8, ptr %byte.at
  %function.at = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %half
  %function = load ptr, ptr %function.at
  %called = call i64 %function(i64 %n)
  %first = insertelement <2 x i64> poison, i64 %n, i64 0
  %both = shufflevector <2 x i64> %first, <2 x i64> poison, <2 x i32> zeroinitializer
  %vector = xor <2 x i64> %both, <i64 81985529216486895, i64 -81985529216486896>
  %low = extractelement <2 x i64> %vector, i64 0
  %high = extractelement <2 x i64> %vector, i64 1
  %real = sitofp i64 %n to double
  %scaled = fmul double %real, 1.2345678901234567
  %bits = bitcast double %scaled to i64
  %w = sext i16 %word to i64
  %b = sext i8 %byte to i64
  switch i64 %n, label %other [i64 0, label %zero i64 1, label %one i64 2, label %two
                               i64 3, label %three i64 4, label %four i64 5, label %five]
zero:
  br label %done
one:
  %v1 = call i64 @elsewhere(i64 %n)
  br label %done
two:
  %v2 = mul i64 %w, %b
  br label %done
three:
  %v3 = sub i64 %long, %called
  br label %done
four:
  %v4 = call i64 @squared(i64 %long)
  br label %done
five:
  %v5 = udiv i64 %bits, 3
  br label %done
other:
  %v6 = call i64 @elsewhere(i64 %bits)
  br label %done
done:
  %value = phi i64 [ 5, %zero ], [ %v1, %one ], [ %v2, %two ], [ %v3, %three ], [ %v4, %four ],
                   [ %v5, %five ], [ %v6, %other ]
  %s1 = add i64 %value, %w
  %s2 = add i64 %s1, %b
  %s3 = add i64 %s2, %long
  %s4 = add i64 %s3, %called
  %s5 = xor i64 %s4, %low
  %s6 = add i64 %s5, %high
  %s7 = xor i64 %s6, %bits
  ret i64 %s7
}
"""
ELSEWHERE = """
@table = private constant [8 x i64] [i64 9, i64 8, i64 7, i64 6, i64 5, i64 4, i64 3, i64 2]
define i64 @elsewhere(i64 %n) nounwind {
  %slot = and i64 %n, 7
  %at = getelementptr [8 x i64], ptr @table, i64 0, i64 %slot
  %value = load i64, ptr %at
  %sum = add i64 %value, %n
  ret i64 %sum
}
"""
NUMBERS = 40


def compiled(ir: str, target: str = "x86-64") -> bytes:
    """An object file, as those of kernels are made."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(cpu.named(target).triple).create_target_machine(
        opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(ir)
    module.verify()
    return machine.emit_object(module)


def block(ir: str, target: str = "x86-64") -> Block:
    return block_of(read_object(compiled(ir, target)))


def expected(n: int) -> int:
    """What EVERYTHING computes."""

    def elsewhere(m: int) -> int:
        return (9, 8, 7, 6, 5, 4, 3, 2)[m & 7] + m

    slot = n & 3
    word, byte = (3, -5, 7, 11)[slot], (5, -6, 7, 0x42)[slot]
    long = (1000003, -17, 29, 1099511627777)[slot]
    called = n * n if n & 1 else 2 * n
    bits = int(np.float64(n * 1.2345678901234567).view(np.int64))
    value = {
        0: 5,
        1: elsewhere(1),
        2: word * byte,
        3: long - called,
        4: long * long,
        5: bits // 3,
    }.get(n, elsewhere(bits))
    total = value + word + byte + long + called ^ n ^ 81985529216486895
    return (total + (n ^ -81985529216486896) ^ bits) + (1 << 63) & (1 << 64) - 1


@pytest.mark.parametrize("target", ["x86-64", "aarch64"])
def test_every_reference(tmp_path: Path, target: str) -> None:
    """The object and a function that it calls, linked far apart, for programs of either kind."""
    compilers, start = {
        "x86-64": (["x86_64-linux-gnu-gcc"], []),
        "aarch64": (["aarch64-linux-gnu-gcc", "-static"], ["qemu-aarch64"]),
    }[target]
    for tool in (compilers[0], *start):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} (of Debian's gcc-aarch64-linux-gnu and qemu-user)")
    near, far = block(EVERYTHING, target), block(ELSEWHERE, target)
    code, other = tmp_path / "code", tmp_path / "other"
    code.write_bytes(near.linked(BASE, {"elsewhere": FAR + far.offset("elsewhere")}.__getitem__))
    other.write_bytes(far.linked(FAR, lambda name: pytest.fail(name)))
    program = tmp_path / "run_image"
    subprocess.run([*compilers, "-o", program, HERE / "run_image.c"], check=True)
    said = subprocess.run(
        [
            *start,
            program,
            str(BASE + near.offset("kernel")),
            str(NUMBERS),
            code,
            str(BASE),
            other,
            str(FAR),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    assert [int(line) + (1 << 63) for line in said.split()] == list(map(expected, range(NUMBERS)))


def test_what_every_reference_is() -> None:
    """The program above means what it is to test."""

    def types(target: str) -> set[int]:
        code = read_object(compiled(EVERYTHING, target))
        return {int(t) for number, rows in code.relocations for t in rows["type"]}

    assert types("x86-64") >= {1, 2, 4}
    assert types("aarch64") >= {257, 275, 277, 283, 286, 299}
    for target, machine in (("x86-64", 62), ("aarch64", 183)):
        assert types(target) <= set(MACHINES[machine].relocations)


def test_places_that_code_does_not_reach() -> None:
    near, far = np.array([0x1000], np.int64), np.array([1 << 40], np.int64)
    words = np.zeros(1, np.int64)
    reach = {
        (number, type_)
        for number, machine in MACHINES.items()
        for type_, relocation in machine.relocations.items()
        if not _refuses(relocation.compute, far, near, words)
    }
    whole = {(62, 1), (62, 24), (183, 257), (183, 260)}
    in_page = {(183, type_) for type_ in (277, 278, 284, 285, 286, 299)}
    assert reach == whole | in_page
    for type_, scale in ((284, 2), (285, 4), (286, 8), (299, 16)):
        assert _refuses(MACHINES[183].relocations[type_].compute, near + scale // 2, near, words)


def _refuses(compute: object, *arrays: np.ndarray) -> bool:
    try:
        compute(*arrays)
    except CodegenError:
        return True
    return False


@pytest.mark.parametrize(
    ("ir", "reason"),
    [
        (
            "declare i64 @of_nobody(i64)\n"
            "define i64 @kernel(i64 %n) nounwind {\n %m = call i64 @of_nobody(i64 %n)\n"
            " %s = add i64 %m, 1\n ret i64 %s\n}",
            "'of_nobody', which this process does not have",
        ),
        (
            "@environ = external global ptr\n@at = private constant ptr @environ\n"
            "define ptr @kernel(i64 %n) nounwind {\n"
            " %m = load volatile ptr, ptr @at\n ret ptr %m\n}",
            "data of the process",
        ),
        (
            "@environ = external global ptr\n"
            "define ptr @kernel(i64 %n) nounwind {\n %m = load volatile ptr, ptr @environ\n"
            " ret ptr %m\n}",
            "no meaning for its relocations of type 42",
        ),
        (
            "@count = internal global i64 3\n"
            "define i64 @kernel(i64 %n) nounwind {\n"
            " %m = load volatile i64, ptr @count\n ret i64 %m\n}",
            r"section \.data is neither code nor constants",
        ),
        (
            "@count = internal global i64 0\n"
            "define i64 @kernel(i64 %n) nounwind {\n"
            " %m = load volatile i64, ptr @count\n ret i64 %m\n}",
            r"section \.bss is neither code nor constants",
        ),
        (
            "@wide = private constant [2 x i64] [i64 1, i64 2], align 8192\n"
            "define i64 @kernel(i64 %n) nounwind {\n"
            " %m = load volatile i64, ptr @wide\n ret i64 %m\n}",
            "aligned to 8192 bytes, expected at most 4096",
        ),
        ("define i64 @other(i64 %n) nounwind {\n ret i64 %n\n}", "no symbol 'kernel'"),
    ],
    ids=["function", "data", "table", "variable", "zeros", "alignment", "symbol"],
)
@pytest.mark.skipif(cpu.host().triple.split("-")[0] != "x86_64", reason="the code is for x86-64")
def test_refusals(ir: str, reason: str) -> None:
    with pytest.raises(CodegenError, match=rf"kernel 'kernel' cannot be loaded: .*{reason}"):
        load_object(compiled(ir), "kernel")


@pytest.mark.parametrize("target", ["x86-64", "aarch64"])
def test_damaged_objects_are_refused_or_linked_inside_of_their_block(target: str) -> None:
    """Cut off anywhere, or with any bytes changed; none of it is run."""
    whole = compiled(EVERYTHING, target)
    size = len(block_of(read_object(whole)).linked(BASE, lambda name: FAR))
    generator = random.Random(7)
    damaged = [whole[:length] for length in range(0, len(whole), 13)]
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            changed[generator.randrange(len(whole))] = generator.choice((0, 1, 0x7F, 0x80, 0xFF))
        damaged.append(bytes(changed))
    refused = 0
    for data in damaged:
        try:
            made = block_of(read_object(data))
            made.offset("kernel")
            assert made.size < 1 << 20
            made.linked(BASE, lambda name: FAR)
        except CodegenError:
            refused += 1
    assert refused > len(whole) // 13
    assert size == block_of(read_object(whole)).size
