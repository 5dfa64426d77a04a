"""Command-line parsing: dataclasses become flags through tyro, errors become one line."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro
from tyro import _errors as tyro_errors

from rlpad.errors import UserError, nearest

T = TypeVar("T")


def parse(flags: type[T], arguments: Sequence[str], *, prog: str, description: str, default: Any = None) -> T:
    """Parses arguments into a dataclass.

    Args:
      flags: dataclass; every field is a flag, its help the text under the field.
      arguments: what was typed after the command.
      prog: the command, for the help text.
      description: first paragraph of the help text.
      default: instance that supplies other defaults than the class.

    Raises:
      UserError: an argument is unknown, missing or has a bad value; one line.
    """
    defaults = {} if default is None else {"default": default}
    with _one_line_errors(flags, prog, arguments):
        return tyro.cli(
            flags,
            args=list(arguments),
            prog=prog,
            description=description,
            **defaults,
        )


@contextlib.contextmanager
def _one_line_errors(flags: type, prog: str, arguments: Sequence[str]) -> Iterator[None]:
    def explain(event: tyro_errors.ParseErrorEvent) -> None:
        raise UserError(f"{_explanation(event, flags, arguments)} (see {prog} --help)")

    with tyro_errors.on_parse_error(explain):
        yield


def _explanation(event: tyro_errors.ParseErrorEvent, flags: type, arguments: Sequence[str]) -> str:
    match event:
        case tyro_errors.UnrecognizedArgs():
            return _unknown(event.tokens[0], flags)
        case tyro_errors.MissingArgs():
            unknown = [token for token in event.unrecognized_tokens if token.startswith("-")]
            if unknown:
                return _unknown(unknown[0], flags)
            return f"missing {', '.join(_name(context.arg) for context in event.missing_arguments)}"
        case tyro_errors.InvalidChoice():
            choices = ", ".join(event.choices)
            return (
                f"{_name(event.argument)}: {event.value!r} isn't one of {choices}{nearest(event.value, event.choices)}"
            )
        case tyro_errors.BadValue():
            if _is_positional(event.argument):
                # What stands where its value belongs looks like a flag.
                unknown = [token for token in arguments if token.startswith("-")]
                if unknown:
                    return _unknown(unknown[0], flags)
            got = f", got {event.offending_value!r}" if event.offending_value else ", got none"
            return f"{_name(event.argument)} expects {_expected(event.argument)}{got}"
        case tyro_errors.InstantiationFailure():
            message = " ".join(str(event.message).split())
            if event.argument is None:
                return message
            if bad := _BAD_LITERAL.fullmatch(message) or _BAD_OPTIONAL.fullmatch(message):
                return f"{_name(event.argument)} expects {_expected(event.argument)}, got {bad['value']}"
            return f"{_name(event.argument)}: {message}"
        case _:
            return f"can't read the command line: {' '.join(str(event).split())[:200]}"


def _unknown(token: str, flags: type) -> str:
    name = token.partition("=")[0]
    if not name.startswith("-"):
        return f"unknown argument {name!r}"
    known, positional = flag_names(flags), _positional_names(flags)
    if name in positional:
        return f"unknown flag {name!r}; {positional[name]} is given without a flag"
    return f"unknown flag {name!r}{nearest(name, known)}"


#: How Python, and tyro for lists, say that a text is no number.
_BAD_LITERAL = re.compile(
    r"(?:invalid literal for int\(\) with base 10|could not convert string to float"
    r"|Could not find valid parse for arguments): (?P<value>.*)"
)
#: How tyro says so of what may be left out.
_BAD_OPTIONAL = re.compile(r"no type matching \{None\}\|\S+ could be instantiated from \[(?P<value>[^\]]*)\]\..*")

_METAVARS = {"INT": "an integer", "FLOAT": "a number", "STR": "a value"}


def _expected(argument: Any) -> str:
    metavar = (argument.lowered.metavar or "no value").removeprefix("{None}|")
    return _METAVARS.get(metavar, metavar)


def _is_positional(argument: Any) -> bool:
    return not _flags_of(argument)


def _flags_of(argument: Any) -> list[str]:
    return [name for name in argument.lowered.name_or_flags if name.startswith("-")]


def _name(argument: Any) -> str:
    return "/".join(_flags_of(argument)) or str(argument.lowered.metavar)


def _positional_names(flags: type) -> dict[str, str]:
    """Maps what a positional argument would be as a flag to the name that it has in the help text."""
    names = {}
    for field in dataclasses.fields(flags):
        hint = typing.get_type_hints(flags, include_extras=True)[field.name]
        extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
        if _POSITIONAL_MARKER in extras:
            metavar = next((m for extra in extras if (m := getattr(extra, "metavar", None))), None)
            names[f"--{field.name.replace('_', '-')}"] = metavar or field.name.upper()
    return names


#: `Positional[T]` is `Annotated[T, marker]`.
_POSITIONAL_MARKER = typing.get_args(tyro.conf.Positional[str])[1]


def flag_names(flags: type, prefix: str = "--") -> list[str]:
    """Lists the flags that a dataclass of flags takes, nested ones with their prefix."""
    names: list[str] = []
    hints = typing.get_type_hints(flags, include_extras=True)
    for field in dataclasses.fields(flags):
        hint = hints[field.name]
        extras: tuple[Any, ...] = ()
        if typing.get_origin(hint) is typing.Annotated:
            hint, *rest = typing.get_args(hint)
            extras = tuple(rest)
        unprefixed = any(getattr(extra, "name", None) == "" for extra in extras)
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            names.extend(flag_names(hint, prefix if unprefixed else f"{name}."))
        elif _POSITIONAL_MARKER not in extras:
            names.append(name)
    return names
