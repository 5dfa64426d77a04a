"""Command-line parsing: dataclasses become flags through tyro, errors become one line."""

from __future__ import annotations

import contextlib
import dataclasses
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
    with _one_line_errors(flags, prog):
        return tyro.cli(
            flags,
            args=list(arguments),
            prog=prog,
            description=description,
            **defaults,
        )


@contextlib.contextmanager
def _one_line_errors(flags: type, prog: str) -> Iterator[None]:
    def explain(event: tyro_errors.ParseErrorEvent) -> None:
        raise UserError(f"{_explanation(event, flags)} (see {prog} --help)")

    with tyro_errors.on_parse_error(explain):
        yield


def _explanation(event: tyro_errors.ParseErrorEvent, flags: type) -> str:
    match event:
        case tyro_errors.UnrecognizedArgs():
            token = event.tokens[0].partition("=")[0]
            kind = "flag" if token.startswith("-") else "argument"
            return f"unknown {kind} {token!r}{nearest(token, flag_names(flags))}"
        case tyro_errors.MissingArgs():
            missing = [_name(context.arg) for context in event.missing_arguments]
            unknown = [token for token in event.unrecognized_tokens if token.startswith("-")]
            if unknown:
                return f"unknown flag {unknown[0]!r}{nearest(unknown[0], flag_names(flags))}"
            return f"missing {', '.join(missing)}"
        case tyro_errors.InvalidChoice():
            choices = ", ".join(event.choices)
            return (
                f"{_name(event.argument)}: {event.value!r} isn't one of {choices}"
                f"{nearest(event.value, event.choices)}"
            )
        case tyro_errors.BadValue():
            got = f", got {event.offending_value!r}" if event.offending_value else ""
            return f"{_name(event.argument)} expects {event.argument.lowered.metavar or 'no value'}{got}"
        case tyro_errors.InstantiationFailure():
            name = f"{_name(event.argument)}: " if event.argument is not None else ""
            return f"{name}{' '.join(str(event.message).split())}"
        case _:
            return f"can't read the command line: {' '.join(str(event).split())[:200]}"


def _name(argument: Any) -> str:
    names = argument.lowered.name_or_flags
    return "/".join(names) if names else str(argument.lowered.metavar)


def flag_names(flags: type, prefix: str = "--") -> list[str]:
    """Lists the flags that a dataclass of flags takes, nested ones with their prefix."""
    import typing

    names: list[str] = []
    hints = typing.get_type_hints(flags, include_extras=True)
    for field in dataclasses.fields(flags):
        hint = hints[field.name]
        unprefixed = False
        if typing.get_origin(hint) is typing.Annotated:
            unprefixed = any(getattr(extra, "name", None) == "" for extra in typing.get_args(hint)[1:])
            hint = typing.get_args(hint)[0]
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            names.extend(flag_names(hint, prefix if unprefixed else f"{name}."))
        else:
            names.append(name)
    return names
