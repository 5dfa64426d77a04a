"""Environments by name: `CartPole-v1`, `atari:Pong`, `my_module:make_env`.

A name is `kind:what`; without a kind it means `gym:`. Kinds come from the entry-point group
`rlpad.environments`, so a third party's are found the way the repository's own are. An entry point names a
function

    make(what, **options) -> build,        build(seed, evaluation=False) -> dm_env.Environment

that checks `what` and the options at once, without making an environment, and returns something picklable. A
prefix that is no kind is taken as a module, and what follows it as a function of that module.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

import dm_env

from rlpad.errors import UserError, nearest

ENTRY_POINT_GROUP = "rlpad.environments"
DEFAULT_KIND = "gym"


@dataclasses.dataclass(frozen=True)
class NamedEnvironmentFactory:
    """Makes the environments of one name; picklable, and equal for equal names and options.

    Attributes:
      name: the full name, kind included: `gym:CartPole-v1`.
      build: what the kind's `make` returned.
    """

    name: str
    build: Callable[..., dm_env.Environment]

    def __call__(self, seed: int, evaluation: bool = False) -> dm_env.Environment:
        """Makes one environment; `evaluation` asks for true rewards where training alters them."""
        return self.build(seed, evaluation=evaluation)


def environment_factory(name: str, **options: Any) -> NamedEnvironmentFactory:
    """Looks an environment up by name, without making one.

    Args:
      name: `kind:what`, `what` alone for Gymnasium, or `module:function`.
      **options: passed on to the environment; which there are depends on it.

    Raises:
      UserError: no such kind, environment or option (with the nearest that there is), or the environment
        needs a package that isn't installed (with what to install).
    """
    prefix, colon, what = name.partition(":")
    if not colon:
        prefix, what = DEFAULT_KIND, name
    if not prefix or not what:
        raise UserError(f"environment {name!r}: expected a name such as CartPole-v1, atari:Pong or module:function")
    kinds = {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    if prefix in kinds:
        make = kinds[prefix].load()
        check_options(name, options, keyword_names(make, skip=1))
        return NamedEnvironmentFactory(f"{prefix}:{what}", make(what, **options))
    return NamedEnvironmentFactory(name, _function_factory(name, prefix, what, options, kinds))


def check_options(name: str, options: Iterable[str], accepted: Iterable[str] | None) -> None:
    """Checks option names against those that `name` accepts; None accepts every name.

    Raises:
      UserError: an option is not accepted; names the nearest one that is, or lists all.
    """
    if accepted is None:
        return
    known = sorted(set(accepted))
    for option in options:
        if option not in known:
            hint = nearest(option, known) or f"; it has {', '.join(known) or 'none'}"
            raise UserError(f"environment {name!r} has no option {option!r}{hint}")


def keyword_names(function: Callable[..., Any], skip: int = 0) -> list[str] | None:
    """Returns the names of the keyword arguments that `function` takes, after `skip` leading ones.

    None says that it takes any (`**kwargs`, or a signature that can't be read).
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):  # some builtins have no readable signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Says whether `function` has an argument called `name`; `**kwargs` isn't one."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclasses.dataclass(frozen=True)
class FunctionFactory:
    """Makes environments by calling `module.function(seed=seed, **options)`.

    The function may return a `dm_env.Environment` or a `gymnasium.Env`; it is also told `evaluation` if it
    has an argument of that name. It is imported anew in every process, so nothing but its name is pickled.
    """

    module: str
    function: str
    options: Mapping[str, Any]

    def __call__(self, seed: int, evaluation: bool = False) -> dm_env.Environment:
        function = getattr(importlib.import_module(self.module), self.function)
        extra = {"evaluation": evaluation} if _takes(function, "evaluation") else {}
        made = function(seed=seed, **self.options, **extra)
        if isinstance(made, dm_env.Environment):
            return made
        import gymnasium

        if isinstance(made, gymnasium.Env):
            (point,) = metadata.entry_points(group=ENTRY_POINT_GROUP, name=DEFAULT_KIND)
            return point.load()(made)(seed, evaluation=evaluation)
        raise UserError(
            f"{self.module}:{self.function} returned {type(made).__name__}, "
            "expected a dm_env.Environment or a gymnasium.Env"
        )


def _function_factory(
    name: str, module_name: str, function_name: str, options: Mapping[str, Any], kinds: Iterable[str]
) -> FunctionFactory:
    module = _import_module(name, module_name, kinds)
    function = getattr(module, function_name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        if function_name.isidentifier():
            hint = nearest(function_name, functions)
        else:
            hint = f"; a Gymnasium id that this module registers is spelt 'gym:{name}'"
        raise UserError(f"module {module_name!r} has no function {function_name!r}{hint}")
    names = keyword_names(function)
    if names is not None:
        if "seed" not in names:
            raise UserError(f"{name} takes no argument 'seed': expected def {function_name}(seed, ...)")
        names = [n for n in names if n not in ("seed", "evaluation")]
    check_options(name, options, names)
    return FunctionFactory(module_name, function_name, dict(options))


def _import_module(name: str, module_name: str, kinds: Iterable[str]) -> ModuleType:
    try:
        if module_name.startswith("."):  # a path such as ./my_env.py, which Python takes for a relative import
            raise ModuleNotFoundError(name=module_name)
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise UserError(f"environment {name!r}: importing {module_name} failed: {error}") from error
        hint = nearest(module_name, kinds)
        raise UserError(
            f"environment {name!r}: {module_name!r} is neither a kind ({', '.join(sorted(kinds))}) nor a module{hint}"
        ) from error
