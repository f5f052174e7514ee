"""Modules that are loaded when something of them is first used.

A process that finds its program compiled needs little of the compiler.  What the rest is asked for
stands behind `with lazy_imports():`, in imports as any others: readers, checkers of types and
`tests/test_architecture.py` see no difference, and without the `with` the program is the same.

    with lazy_imports():
        from hlo_mlc.frontend import importer  # is not loaded

    importer.import_function(module, entry)  # is loaded
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.locks import AwaitedByForks

_OURS = f"{__name__.partition('.')[0]}."


@contextlib.contextmanager
def lazy_imports() -> Iterator[None]:
    """Modules of ours that are imported in here are loaded when they are first used; their packages
    at once.

    In here `from package import module` is the only form: what a module defines cannot be had
    without its being loaded, and is not found.
    """
    # It stays: who goes through the list meanwhile, in another thread, would miss one behind it.
    if sys.meta_path[:1] != [_FINDER]:
        sys.meta_path.insert(0, _FINDER)
    _here.is_lazy = True
    try:
        yield
    finally:
        _here.is_lazy = False


def is_loaded(module: ModuleType) -> bool:
    """Whether the code of a module has run."""
    return type(module) is not _LazyModule


def loaded_late() -> int:
    """How many modules have been loaded since they were imported lazily: what is known of the files
    that this process runs is known anew where it grows."""
    return len(_loaded)


def load_within(packages: Collection[str]) -> None:
    """Loads the modules of these packages of ours that were imported lazily, and what these import
    lazily themselves."""

    folders = tuple(f"{_OURS}{package}." for package in packages)

    def waiting() -> list[_LazyModule]:
        found = tuple(sys.modules.items())
        return [m for name, m in found if name.startswith(folders) and isinstance(m, _LazyModule)]

    while modules := waiting():
        for module in modules:
            module.__lazy__.load(module)


_loaded: list[str] = []
_loading = AwaitedByForks()


class _Here(threading.local):
    """Whether this thread is importing lazily; others may import as usual meanwhile."""

    is_lazy = False


_here = _Here()


class _LazyFinder(MetaPathFinder):
    """Finds our modules where others find them, and has them loaded later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _here.is_lazy or not fullname.startswith(_OURS):
            return None
        others = (one for one in tuple(sys.meta_path) if not isinstance(one, _LazyFinder))
        found = (one.find_spec(fullname, path, target) for one in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            is_package = spec.submodule_search_locations is not None
            spec.loader = (_PackageLoader if is_package else _LazyLoader)(spec.loader)
        return spec


_FINDER = _LazyFinder()


class _PackageLoader(Loader):
    """Loads a package now, and what that imports: Python takes it to be there when it imports
    a module of it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _put_back(module, self._loader)
        _here.is_lazy = False
        try:
            self._loader.exec_module(module)
        finally:
            _here.is_lazy = True


class _LazyLoader(Loader):
    """Loads a module once, at its first use; threads that use it meanwhile wait, and forks.

    They never wait for each other in a circle, as no two modules of ours import each other, be it
    lazily.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._lock = threading.RLock()
        self._is_loading = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _LazyModule(spec.name)
        module.__lazy__ = self
        return module

    def exec_module(self, module: ModuleType) -> None:
        """What runs a module's code when it is imported: nothing is run."""
        _put_back(module, self._loader)

    def load(self, module: ModuleType) -> None:
        """Runs the code, unless that was done, or is being done by this very thread."""
        with _loading, self._lock:
            if is_loaded(module) or self._is_loading:
                return
            self._is_loading = True
            try:
                with no_collection():  # which takes a fifth of what modules take to load
                    self._loader.exec_module(module)
                module.__class__ = ModuleType
                _loaded.append(module.__name__)
            finally:
                self._is_loading = False


def _put_back(module: ModuleType, loader: Loader) -> None:
    """Has a module know the loader that knows its source."""
    assert module.__spec__ is not None
    module.__spec__.loader = module.__loader__ = loader


class _LazyModule(ModuleType):
    """A module whose code has not run; it becomes a usual one."""

    __lazy__: _LazyLoader

    def __getattribute__(self, name: str) -> object:
        # Names of Python's own are asked of modules by all that goes through them.
        if not name.startswith("__") and not _here.is_lazy:
            self.__lazy__.load(self)
        return ModuleType.__getattribute__(self, name)  # which it is by now
