"""Code in memory: wherever there is room, however much there is, and whoever lets it go."""

from __future__ import annotations

import ctypes
import gc
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from hlo_mlc.runtime.variants import KernelCode, load_object

ENTRY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
PAGE = 4096


@pytest.fixture(scope="module")
def objects() -> list[bytes]:
    """Objects whose kernel looks up (n & 7) * k and adds k, for k from 0 on; the larger k, the more
    of them is code that never runs."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=1, reloc="pic", codemodel="small"
    )

    def compiled(k: int) -> bytes:
        table = ", ".join(f"i64 {k * n}" for n in range(8))
        padding = ", ".join(["i64 -1"] * (k * 97 + 1))
        return machine.emit_object(
            llvm.parse_assembly(f"""
@table = private constant [8 x i64] [{table}]
@padding = private constant [{k * 97 + 1} x i64] [{padding}]
define i64 @kernel(i64 %n) nounwind {{
  %slot = and i64 %n, 7
  %at = getelementptr [8 x i64], ptr @table, i64 0, i64 %slot
  %value = load i64, ptr %at
  %rest = load volatile i64, ptr @padding
  %none = add i64 %rest, {k + 1}
  %sum = add i64 %value, %none
  ret i64 %sum
}}""")
        )

    return [compiled(k) for k in range(24)]


def is_right(code: KernelCode, k: int) -> bool:
    return all(ENTRY(code.entry)(n) == (n & 7) * k + k for n in (0, 5, 14))


def maps() -> int:
    """How many memory maps of this process hold code of ours or nobody's."""
    with open("/proc/self/maps") as lines:
        return sum(1 for line in lines if len(line.split()) == 5)


def resident_pages() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1])


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")


@linux
def test_many_kernels_take_few_maps_and_give_their_memory_back(objects: list[bytes]) -> None:
    def load(count: int) -> list[KernelCode]:
        return [load_object(objects[n % len(objects)], "kernel") for n in range(count)]

    held = load(600)
    before = maps()
    held += load(600)
    assert maps() - before < 30  # each has a page at least
    assert len({code.entry // PAGE for code in held}) == len(held)
    full = resident_pages()
    del held[::2]
    assert maps() - before < 30  # what is free stays mapped, and has no memory
    assert resident_pages() < full - 1000
    for _ in range(10):
        more = load(500)
        assert all(is_right(code, n % len(objects)) for n, code in enumerate(more))
        del more
    assert maps() - before < 30
    assert resident_pages() < full + 200


def test_threads_load_run_and_let_go(objects: list[bytes]) -> None:
    """In cycles too, so that the collector gives pages back in the middle of whatever a thread is
    doing, loading included."""
    usual, threshold = sys.getswitchinterval(), gc.get_threshold()
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = random.Random(seed)
        held: list[tuple[int, KernelCode]] = []
        for step in range(400):
            k = generator.randrange(len(objects))
            code = load_object(objects[k], "kernel")
            held.append((k, code))
            cycle: list[object] = [code]
            cycle.append(cycle)
            if len(held) > 25:
                del held[generator.randrange(len(held))]
            k, code = held[generator.randrange(len(held))]
            if not is_right(code, k):
                wrong.append(k)
            if step % 50 == 0:
                gc.collect()

    try:
        gc.freeze()  # else it looks at what all tests before have left, again and again
        sys.setswitchinterval(1e-5)
        gc.set_threshold(20, 2, 2)
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(work, range(6)))
    finally:
        sys.setswitchinterval(usual)
        gc.set_threshold(*threshold)
    assert not wrong


_PRELUDE = """
import ctypes, resource, sys
from pathlib import Path
from hlo_mlc.runtime import library
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.support.errors import RuntimeLibraryError

code = Path(sys.argv[1]).read_bytes()
process = ctypes.CDLL(None)
process.mmap.restype = ctypes.c_void_p
process.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
process.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
process.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
NOTHING = 0x4022  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE

def reserved(size):
    return process.mmap(None, size, 0, NOTHING, -1, 0)

def loaded():
    kernel = load_object(code, "kernel")
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(kernel.entry)(5) == 5 * 7 + 7
    return kernel

def refused():
    try:
        loaded()
    except RuntimeLibraryError as error:
        print(error)
    else:
        print("loaded")
"""

# The system puts what is mapped as high as it fits: there is room for one page, and for the next
# one only more than 4 GiB below, as it becomes in a process that has used much memory.
_APART = """
size = 1 << 32
block = reserved(size)
while reserved(4096) > block:
    pass
for _ in range(40):
    process.munmap(block + size - (1 << 20), 4096)
    kept = [loaded()]
print("loaded")
"""
_NO_MAPS = """
library.load()
limit = int(Path("/proc/sys/vm/max_map_count").read_text())
size = 8192 * (limit + 8)
block = reserved(size)
page = block
while process.mprotect(page, 4096, 1) == 0:
    page += 8192
refused()
process.munmap(block, size)
kept = [loaded()]
print("loaded")
"""
_NO_MEMORY = """
kept = [loaded()]
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, before[1]))
kept += [loaded() for _ in range(100)]  # there is room
try:
    while True:
        kept.append(loaded())
except (RuntimeLibraryError, MemoryError) as error:
    said = error
resource.setrlimit(resource.RLIMIT_AS, before)
print("There is no memory for Python" if isinstance(said, MemoryError) else said)
kept += [loaded() for _ in range(1000)]
print("loaded")
"""
# A child has code of its own, whatever threads of its parent are doing, and leaves no trace there.
_FORKING = """
import os, threading

def work():
    while not stop.is_set():
        loaded()

def right(kernel):
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(kernel.entry)(6) == 6 * 7 + 7

kept = [loaded() for _ in range(20)]
stop = threading.Event()
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        known = all(map(right, kept))
        del kept[::2]
        kept += [loaded() for _ in range(20)]
        os._exit(0 if known and all(map(right, kept)) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(map(right, kept))
stop.set()
thread.join()
print("loaded")
"""
# Kernels in cycles and in modules, while threads load and run others: nobody waits for them.
_ENDING = """
import threading

def work():
    while True:
        kept.append(loaded())
        del kept[:-50]

kept = [loaded()]
cycle = [loaded()]
cycle.append(cycle)
del cycle
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while len(kept) < 50:
    pass
print("loaded")
"""


@linux
@pytest.mark.parametrize(
    ("program", "refusal"),
    [
        (_APART, ""),
        (_FORKING, ""),
        (_ENDING, ""),
        (_NO_MAPS, "The.* of code.*maps.* ran out.*"),
        (_NO_MEMORY, "There is no memory for .*"),
    ],
    ids=["apart", "forking", "ending", "maps", "memory"],
)
def test_processes_go_on(tmp_path: Path, objects: list[bytes], program: str, refusal: str) -> None:
    code = tmp_path / "code.o"
    code.write_bytes(objects[7])
    # What is installed, not what lies in the folder that the tests are started from.
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _PRELUDE + program, code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    *said, last = ran.stdout.splitlines()
    assert last == "loaded"
    assert len(said) == bool(refusal)
    assert re.fullmatch(refusal, *said or [""])
