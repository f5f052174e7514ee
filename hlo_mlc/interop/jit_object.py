"""Objects of `jax.jit` with methods of ours. Nothing of the compiler is needed for that."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

import jax

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class JitObject(functools.partial, Generic[P, R_co]):
    """A `jax.jit` object with some arguments bound, none as a rule, and room for methods.

    JAX's type takes no subclasses. A partial function of it is called without a frame of ours, and
    all that it lacks is looked up in what it is a part of.
    """

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The function traced for such arguments, as by `jax.jit`."""
        return self.func.trace(*self._with_bound(args, kwargs), **self.keywords, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The function lowered for such arguments, as by `jax.jit`."""
        return self.func.lower(*self._with_bound(args, kwargs), **self.keywords, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The types of the results for such arguments."""
        return self.func.eval_shape(*self._with_bound(args, kwargs), **self.keywords, **kwargs)

    def clear_cache(self) -> None:
        """Forgets all that was compiled of the function."""
        self.func.clear_cache()

    def _with_bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments behind those that are bound."""
        if self.args and args and args[0] is self.args[0]:
            # The methods of what `jax.jit` makes of a method are not bound: there, callers write
            # `model.apply.lower(model, x)`, so what can mean that does.
            try:
                inspect.signature(self.func).bind(*args, **kwargs)
            except TypeError:
                pass
            else:
                return args
        return (*self.args, *args)

    @property
    def __signature__(self) -> inspect.Signature:
        # Functions in others: each asks several times for that of the next.  The attributes may be
        # those of another object, copied by `functools.wraps`.
        of, signature = self.__dict__.get("_signature", (None, None))
        if of is not self.func:
            signature = inspect.signature(self.func)
            self.__dict__["_signature"] = self.func, signature
        parameters = list(signature.parameters.values())
        for _ in self.args:
            if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
                del parameters[0]
        return signature.replace(parameters=parameters)

    if not TYPE_CHECKING:  # to checkers there is no more than what is written here

        def __getattr__(self, name: str) -> Any:
            return getattr(self.func, name)

    def __repr__(self) -> str:
        if self.args:
            return f"<bound method {self.__qualname__} of {self.args[0]!r}>"
        return repr(self.func)

    # As for methods: bound to the same object they are equal, though made at each look-up.
    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, JitObject)
            and bool(self.args)
            and self.__dict__ is other.__dict__
            and len(self.args) == len(other.args)
            and all(a is b for a, b in zip(self.args, other.args, strict=True))
        )

    def __hash__(self) -> int:
        return hash((id(self.__dict__), *map(id, self.args)))  # which all that are bound share

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if not self.args:
            return self
        return self._bind(*(copy.deepcopy(arg, memo) for arg in self.args))

    def _bind(self, *args: Any) -> Self:
        bound = type(self)(self.func, *args, **self.keywords)
        bound.__dict__ = self.__dict__  # shared, since methods are bound at each look-up
        return bound
