"""`flowguard passwd`: users and their passwords, in a file that `serve --password-file` reads."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowguard.app.extras import needs_extra
from flowguard.cli.console import command_group
from flowguard.errors import ConfigError

if TYPE_CHECKING:
    from flowguard.identity.passwords import PasswordFile

passwd = command_group("Manage users and their passwords.")

User = Annotated[str, typer.Argument(help="Name of the user.")]
File = Annotated[Path, typer.Option("--file", help="File of users and hashes.")]


@passwd.command()
def add(
    user: User,
    file: File,
    scram: Annotated[
        bool, typer.Option("--scram", help="Store it for authentication by SCRAM-SHA-256.")
    ] = False,
) -> None:
    """Add a user, or change the password; it is read twice, from the terminal or stdin."""
    users = _read(file, may_be_absent=True)
    first, second = _ask("Password: "), _ask("The same again: ")
    if first != second:
        raise _refused("the two passwords are not the same: nothing has changed")
    if not first:
        raise _refused("an empty password protects nothing: nothing has changed")
    try:
        _write(file, users.with_user(user, first.encode(), scram=scram))
    except ConfigError as error:
        raise _refused(str(error)) from error


@passwd.command("del")
def delete(user: User, file: File) -> None:
    """Delete a user."""
    try:
        _write(file, _read(file).without_user(user))
    except ConfigError as error:
        raise _refused(str(error)) from error


@passwd.command()
def check(user: User, file: File) -> None:
    """Check a password; the exit code is 1 if it is wrong or there is no such user."""
    if not _read(file).verify(user, _ask("Password: ").encode()):
        typer.echo("wrong", err=True)
        raise typer.Exit(1)
    typer.echo("right")


def _ask(prompt: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(prompt, hide_input=True, prompt_suffix=""))
    return sys.stdin.readline().rstrip("\r\n")


def _read(file: Path, *, may_be_absent: bool = False) -> "PasswordFile":
    try:
        from flowguard.identity.passwords import PasswordFile

        return PasswordFile({}) if may_be_absent and not file.exists() else PasswordFile.read(file)
    except ModuleNotFoundError as error:
        raise _refused(f"flowguard passwd {needs_extra('passwords')}") from error
    except ConfigError as error:
        raise _refused(str(error)) from error


def _write(file: Path, users: "PasswordFile") -> None:
    """Write a new file that only its owner can read, and replace the old one by it."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(users.text())
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            before = file.stat()
            with suppress(PermissionError):
                os.chown(new, before.st_uid, before.st_gid)  # The owner may be the broker's user.
            new.chmod(before.st_mode & 0o777)
        new.replace(file)
    except OSError as error:
        raise _refused(f"cannot write {file}: {error.strerror}") from error


def _refused(why: str) -> typer.Exit:
    typer.echo(why, err=True)
    return typer.Exit(2)
