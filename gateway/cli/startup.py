"""What all commands need before they do anything: the settings, and one clear line where they cannot go on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import typer
from pydantic import ValidationError

from gateway.profiles import ProfileInvalid
from gateway.settings import Settings
from prefilters.errors import RuleSetInvalid

USAGE_ERROR = 2
"""Exit status for a configuration that cannot be used; a supervisor does not try again."""


def fail(message: str, status: int = USAGE_ERROR) -> NoReturn:
    """End with one clear line."""
    print(f"sluicegate: {message}", file=sys.stderr)
    raise typer.Exit(status)


def settings(**chosen: Any) -> Settings:
    """The settings, with what was chosen on the command line; or one line that says which variable is wrong."""
    try:
        return Settings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(map(str, first["loc"])).upper()
        fail(f"SLUICEGATE_{name}: {first['msg']}")


@contextlib.contextmanager
def startup_errors() -> Iterator[None]:
    """Turn what an operator can mend into one line."""
    from sqlalchemy.exc import ArgumentError, DBAPIError

    from gateway.store.migrate import SchemaMismatch

    try:
        yield
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()
        fail(f"the database cannot be used: {reason[0] if reason else type(error.orig).__name__}", status=1)
    except ArgumentError as error:
        fail(f"SLUICEGATE_DATABASE_URL: {error}")
    except ProfileInvalid as error:
        fail("a profile cannot be used: " + "; ".join(error.problems))
    except RuleSetInvalid as error:
        fail("the edge rules cannot be used: " + "; ".join(error.problems))
    except SchemaMismatch as error:
        fail(error.public)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "))
