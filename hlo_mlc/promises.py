"""Kernels that a program is loaded with before there is code of them: what is done behind its call.

XLA compiles the program while they are assembled, and its executions wait for them.  A promise is
always kept: where a kernel cannot be assembled after all, its loops are interpreted, and it is not
promised again.  What was assembled is stored, and what was proved counted, when nothing is printed
any longer: both are Python's work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from hlo_mlc.backends.base import Backend, KernelObject, PromisedKernel
from hlo_mlc.codegen.cpu.assemble import LATER
from hlo_mlc.kernel_objects import BegunObject, count_proofs
from hlo_mlc.support.faults import Fault
from hlo_mlc.support.options import Options
from hlo_mlc.support.turns import short_turns
from hlo_mlc.support.warning import warn

TURN_S = 1e-4
"""Seconds after which the printing thread lets an assembling one go on, which asks for the
interpreter between two calls of LLVM; Python's own 5 ms took away most of the gain."""

KernelKey = tuple[str, Backend, bool]
"""What a process knows a kernel by: its fingerprint, for what it is, and whether it has checks."""

Kept = tuple[BegunObject, Future[KernelObject]]
"""A promised kernel, and what becomes of it."""

_broken: dict[KernelKey, str] = {}  # promised once and not assembled, and why


def was_broken(key: KernelKey) -> bool:
    """Whether this kernel was promised once and could not be assembled."""
    return key in _broken


def keep_later(
    promised: PromisedKernel, key: KernelKey, begun: BegunObject, assembler: ThreadPoolExecutor
) -> Kept:
    """Has a kernel that was promised assembled; whatever fails, nobody waits for it for ever."""
    loops = begun.loops
    object_: Future[KernelObject] = Future()
    assert loops is not None

    def keep() -> None:
        try:
            made = begun.assembled()
            promised.keep(begun.backend.load(promised.kernel, made))
            object_.set_result(made)
        except BaseException as error:
            object_.set_exception(error)
            _broken[key] = ""
            promised.give_up(loops)
            fault = Fault(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            is_known = fault.reason in list(_broken.values())
            _broken[key] = fault.reason
            if not is_known:
                warn(
                    f"hlo_mlc interprets {promised.kernel.name}, which is very slow: "
                    f"{fault.reason}. Where that lasts, what is compiled from now on leaves it to "
                    "XLA, as the next call does; within other functions, jax.clear_caches() has "
                    "them compiled anew"
                )
            if not isinstance(error, Exception):
                raise

    do_later(keep, assembler, () if begun.code is None else (begun.code,))
    return begun, object_


def store_later(
    kept: Sequence[Kept], tally: Counter[str], options: Options, assembler: ThreadPoolExecutor
) -> None:
    """Has kept promises stored for other processes, and counts what was proved."""

    def store() -> None:
        for begun, made in kept:
            if made.exception() is not None:
                continue
            try:
                begun.store(made.result())
            except Exception as error:
                warn(
                    f"hlo_mlc will compile {begun.draft.name} again in each process: "
                    f"{Fault(error).reason}"
                )
        count_proofs(tally, options)

    if kept:
        do_later(store, assembler, [made for _, made in kept])
    else:
        store()


def do_later(
    work: Callable[[], None], assembler: ThreadPoolExecutor, after: Sequence[Future[Any]] = ()
) -> None:
    """Has the assembler do what nobody waits for, or the thread that is last `after` something: to
    start one more would take as long as the work.  It takes short turns: who compiles the program
    meanwhile, which asks for the interpreter now and then, would wait Python's 5 ms each time."""
    todo, awaited = [work], list(after)  # futures keep what they call, which is to keep nothing

    def once(*_: object) -> None:
        if not all(one.done() for one in awaited):
            return
        try:
            work = todo.pop()
        except IndexError:  # another thread does it
            return
        awaited.clear()
        try:
            with short_turns(TURN_S):
                work()
        finally:
            LATER.__exit__()

    LATER.__enter__()
    if not all(one.done() for one in after):
        for one in after:
            one.add_done_callback(once)
        return
    try:
        assembler.submit(once)
    except BaseException:  # maybe a thread that there is does it all the same
        once()
        raise
