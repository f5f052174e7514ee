"""Modules are loaded when something of them is used, by one thread, once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

SLOW = """
import time
time.sleep(0.2)
def value(): return _value
_value = 5
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in a process of its own, where `hlo_mlc.late` is a package of these files."""

    def run(script: str, **files: str) -> str:
        folder = tmp_path / "late"
        folder.mkdir()
        for name, content in {"__init__": "", **files}.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(content))
        begin = f"""
            import sys, threading, types
            import hlo_mlc
            hlo_mlc.__path__.append({str(tmp_path)!r})
            from hlo_mlc.support.lazy_imports import is_loaded, lazy_imports, loaded_late
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def test_a_module_is_loaded_at_its_first_use(run: Callable[..., str]) -> None:
    run(
        """
        with lazy_imports():
            from hlo_mlc.late import one
        assert not is_loaded(one) and not one.__doc__ and one.__file__.endswith("one.py")
        assert sys.modules["hlo_mlc.late.one"] is one
        before = loaded_late()
        assert one.name == "one" and is_loaded(one) and type(one) is types.ModuleType
        assert loaded_late() == before + 1
        assert one.__doc__ == "About one." and repr(one.__loader__) == repr(one.__spec__.loader)
        """,
        one='"""About one."""\nname = "one"\n',
    )


def test_what_others_import_is_the_same_module(run: Callable[..., str]) -> None:
    run(
        """
        with lazy_imports():
            from hlo_mlc.late import one, two
        from hlo_mlc.late.one import thing
        assert is_loaded(one) and one.thing is thing and not is_loaded(two)
        with lazy_imports():
            from hlo_mlc.late import one as again
        assert again is one and is_loaded(again)
        import hlo_mlc.late.two
        assert hlo_mlc.late.two is two and not is_loaded(two)
        two.thing
        """,
        one="thing = object()",
        two="thing = object()",
    )


def test_packages_are_loaded_at_once_and_as_ever(run: Callable[..., str]) -> None:
    run(
        """
        with lazy_imports():
            from hlo_mlc.late import one, two
        assert is_loaded(sys.modules["hlo_mlc.late"]) and hlo_mlc.late.total == 2
        assert is_loaded(one) and not is_loaded(two) and two.thing == 2
        assert type(hlo_mlc.late.__loader__) is type(two.__loader__)
        """,
        __init__="from hlo_mlc.late.one import thing\ntotal = thing + 1\n",
        one="thing = 1",
        two="thing = 2",
    )


def test_only_modules_can_be_imported_so(run: Callable[..., str]) -> None:
    run(
        """
        try:
            with lazy_imports():
                from hlo_mlc.late.one import thing
        except ImportError as error:
            assert "thing" in str(error)
        else:
            raise AssertionError("it was loaded")
        from hlo_mlc.late.one import thing
        """,
        one="thing = 1",
    )


def test_threads_wait_for_the_first(run: Callable[..., str]) -> None:
    run(
        """
        with lazy_imports():
            from hlo_mlc.late import slow
        found = []
        threads = [threading.Thread(target=lambda: found.append(slow.value())) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert found == [5] * 8
        """,
        slow=SLOW,
    )


def test_what_other_threads_import_meanwhile_is_found(run: Callable[..., str]) -> None:
    run(
        """
        from importlib.util import spec_from_file_location

        class Slow:
            def find_spec(self, name, path, target=None):
                if name == "others":
                    began.set()
                    assert ended.wait(20)

        class Last:
            def find_spec(self, name, path, target=None):
                if name == "others":
                    return spec_from_file_location(name, f"{hlo_mlc.__path__[-1]}/late/one.py")

        began, ended, found = threading.Event(), threading.Event(), []
        sys.meta_path += [Slow(), Last()]
        thread = threading.Thread(target=lambda: found.append(__import__("others").thing))
        with lazy_imports():
            thread.start()
            assert began.wait(20)
        ended.set()
        thread.join()
        assert found == [1]
        """,
        one="thing = 1",
    )


def test_forks_wait_so_that_children_find_modules_whole(run: Callable[..., str]) -> None:
    run(
        """
        import os
        with lazy_imports():
            from hlo_mlc.late import slow
        thread = threading.Thread(target=slow.__getattribute__, args=("value",))
        thread.start()
        while "time" not in slow.__dict__: pass
        child = os.fork()
        if not child:
            os._exit(0 if is_loaded(slow) and slow.value() == 5 else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        """,
        slow=SLOW,
    )


def test_what_failed_is_tried_again(run: Callable[..., str]) -> None:
    run(
        """
        with lazy_imports():
            from hlo_mlc.late import one
        for _ in range(2):
            try:
                one.thing
            except ZeroDivisionError:
                assert not is_loaded(one)
        threading.is_well = True
        assert one.thing == 1
        """,
        one="import threading\nthing = 1 if hasattr(threading, 'is_well') else 1 // 0",
    )


def test_modules_of_others_are_imported_as_ever(run: Callable[..., str]) -> None:
    run(
        """
        sys.path.append(hlo_mlc.__path__[-1])
        with lazy_imports():
            import late.one
        assert late.one.__dict__["thing"] == 1
        """,
        one="thing = 1",
    )
