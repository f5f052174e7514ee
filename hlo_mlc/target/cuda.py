"""NVIDIA GPUs as code generation sees them: limits by compute capability."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hlo_mlc.support.errors import UnknownTargetError

WARP = 32  # threads that run in lockstep
VECTOR_BYTES = 16  # the widest load or store of one thread
KIB = 1024


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """The limits of an architecture, by the name that CUDA's compiler knows it by (`sm_90`): of a
    block of threads unless the name says otherwise.

    Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".
    """

    name: str
    threads: int
    static_shared_bytes: int  # what a kernel may declare; more has to be asked for at the launch
    shared_bytes: int  # what it may ask for
    multiprocessors: int  # of the card that the default parameters have in mind
    # Of its memory, in a microsecond: how fast a card is, not what its code may do.
    memory_bytes_per_us: float = field(repr=False, compare=False)
    is_one_block: bool = field(default=False, repr=False)

    @property
    def one_block(self) -> CudaTarget:
        """What a single block of threads has of it: there is none beside it to share work with."""
        return replace(self, is_one_block=True)

    @property
    def key(self) -> str:
        """What it is called in records: equal for targets on which schedules mean the same."""
        return f"{self.name}-{self.shared_bytes // KIB}K"


# Source: NVIDIA's data sheets of the modules with the fastest link (SXM), in decimal units.
_MEMORY_BYTES_PER_US = {"A100": 2.0e6, "H100": 3.35e6, "H200": 4.8e6}
_TARGETS = {
    target.name: target
    for target in (
        # A100: 108 multiprocessors; H100 and H200 SXM: 132.
        CudaTarget("sm_80", 1024, 48 * KIB, 163 * KIB, 108, _MEMORY_BYTES_PER_US["A100"]),
        CudaTarget("sm_90", 1024, 48 * KIB, 227 * KIB, 132, _MEMORY_BYTES_PER_US["H100"]),
    )
}
# GPUs that run the code of an architecture, but have less shared memory.
_SHARED_BYTES = {"8.6": 99 * KIB, "8.9": 99 * KIB}


def names() -> tuple[str, ...]:
    """The architectures that `named` knows."""
    return tuple(_TARGETS)


def for_device(capability: str, kind: str = "") -> CudaTarget:
    """The newest architecture whose code runs on GPUs of a compute capability such as "9.0", with
    what is known of the card that calls itself `kind` ("NVIDIA H200").

    Raises: UnknownTargetError where there is none: machine code runs on GPUs of the same major
    version, and of the same minor version or a later one.
    """
    wanted = tuple(map(int, capability.split(".")))
    for target in reversed(_TARGETS.values()):
        own = int(target.name[3:-1]), int(target.name[-1])
        if own[0] == wanted[0] and own <= wanted:
            memory = next(
                (rate for name, rate in _MEMORY_BYTES_PER_US.items() if name in kind),
                target.memory_bytes_per_us,
            )
            return replace(
                target,
                memory_bytes_per_us=memory,
                shared_bytes=_SHARED_BYTES.get(capability, target.shared_bytes),
            )
    raise UnknownTargetError(
        f"There is no code for GPUs of compute capability {capability}; "
        f"expected those that run one of {', '.join(_TARGETS)}"
    )


def named(name: str) -> CudaTarget:
    """The GPU architecture called `name`, such as "sm_90".

    Raises: UnknownTargetError for any other name.
    """
    if name not in _TARGETS:
        raise UnknownTargetError(
            f"There is no CUDA target {name!r}; expected one of {', '.join(_TARGETS)}"
        )
    return _TARGETS[name]
