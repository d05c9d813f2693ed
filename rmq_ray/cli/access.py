"""``acl user add | update | delete | list``, ``acl list | grant | revoke | white | test | import |
export``: who may do what, in a cluster with ``foreign = "acl"``. ``audit``: what was refused and
what was changed, by whom.

Invariants: a secret is never an argument (others on the host could read it): it comes from a
prompt, a file, or is generated and shown this once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from rmq_ray.cli.base import output
from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.cli.shell.watch import watched
from rmq_ray.errors import ConfigError
from rmq_ray.files import FileSystem
from rmq_ray.topology.yaml_text import read_yaml, write_yaml

F = TypeVar("F", bound=Callable[..., Any])
RIGHTS = click.Choice(["PUB", "SUB", "PUB|SUB", "DENY"])
AUDIT_COLUMNS = ["time", "event", "party", "who", "request", "resources", "repeats", "told"]
USER_COLUMNS = ["access_key", "admin", "default_topic", "default_group", "topics", "groups"]
RIGHT_COLUMNS = ["access_key", "kind", "name", "right"]
DEFAULT, EVERYTHING = "(any other)", "(everything)"


@click.group()
def acl() -> None:
    """Accounts and their rights: user, list, grant, revoke, white, test, import, export."""


@acl.group()
def user() -> None:
    """Accounts: add, update, delete, list."""


def _settings(command: F) -> F:
    """The options that say what an account is."""
    options = (
        click.option(
            "--secret-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Its secret: a file with nothing else, or mqadmin's tools.yml.",
        ),
        click.option("--ask-secret", is_flag=True, help="Its secret: asked for on the terminal."),
        click.option("--admin/--no-admin", default=None, help="May administer the cluster."),
        click.option("--default-topic", type=RIGHTS, help="On topics that are not named."),
        click.option("--default-group", type=RIGHTS, help="On groups that are not named."),
        click.option(
            "--topic", "topics", multiple=True, metavar="NAME=RIGHT", help="Like 'orders=PUB'."
        ),
        click.option(
            "--group", "groups", multiple=True, metavar="NAME=RIGHT", help="Like 'billing=SUB'."
        ),
        click.option("--white", "white_address", help="Needs no signature from there: 10.0.0.*"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@user.command()
@click.argument("access_key")
@_settings
@pass_options
@told
def add(
    options: Options, /, access_key: str, secret_file: Path | None, ask_secret: bool, **given: Any
) -> None:
    """Make an account. Without --secret-file and --ask-secret its secret is generated, and shown
    this once.
    """
    secret = _secret(secret_file, ask_secret)
    made = options.admin.acl.create(access_key, secret, **_given(given))
    _tell(options, "made", access_key, made)


@user.command()
@click.argument("access_key")
@click.option("--new-secret", is_flag=True, help="Its secret: generated, and shown this once.")
@_settings
@pass_options
@told
def update(
    options: Options,
    /,
    access_key: str,
    new_secret: bool,
    secret_file: Path | None,
    ask_secret: bool,
    **given: Any,
) -> None:
    """Change what is given of an account. --topic and --group replace all its entries of that kind;
    `acl grant` and `acl revoke` change one.
    """
    if new_secret and (secret_file or ask_secret):
        raise click.UsageError("--new-secret generates one: give no other")
    secret = "" if new_secret else _secret(secret_file, ask_secret)
    made = options.admin.acl.update(access_key, secret, **_given(given))
    _tell(options, "changed", access_key, made)


@user.command()
@click.argument("access_key")
@pass_options
@told
def delete(options: Options, access_key: str) -> None:
    """Take an account away: its next request is refused, on connections that are open, too."""
    options.confirm(f"Delete account {access_key}? Whoever uses it is refused from now on")
    _tell(options, "deleted", access_key, options.admin.acl.delete(access_key))


@user.command("list")
@pass_options
@watched
@told
def list_users(options: Options) -> None:
    """All accounts, without secrets."""
    columns = [*USER_COLUMNS, "white_address"]
    output.rows(options.admin.acl.users(), columns, options.style)


@acl.command("list")
@click.option("--user", "access_key", default=None, help="Only this account.")
@pass_options
@watched
@told
def list_rights(options: Options, access_key: str | None) -> None:
    """Who holds what: a line for each account and topic or group."""
    users = [
        user
        for user in options.admin.acl.users()
        if access_key is None or user["access_key"] == access_key
    ]
    if access_key is not None and not users:
        raise ConfigError(f"there is no account {access_key!r}", access_key)
    output.rows([row for user in users for row in _rows(user)], RIGHT_COLUMNS, options.style)


@acl.command()
@click.argument("access_key")
@click.argument("right", type=RIGHTS)
@click.option("--topic", default=None)
@click.option("--group", default=None)
@pass_options
@told
def grant(
    options: Options, access_key: str, right: str, topic: str | None, group: str | None
) -> None:
    """Add a right on a topic or group: `acl grant web-shop PUB --topic orders`. DENY denies it,
    whatever the account's defaults say.
    """
    made = options.admin.acl.grant(access_key, topic=topic, group=group, right=right)
    _tell(options, "granted", access_key, made)


@acl.command()
@click.argument("access_key")
@click.argument("right", type=RIGHTS, default="PUB|SUB")
@click.option("--topic", default=None)
@click.option("--group", default=None)
@pass_options
@told
def revoke(
    options: Options, access_key: str, right: str, topic: str | None, group: str | None
) -> None:
    """Take a right on a topic or group away, both rights where none is named; also where a default
    would give it.
    """
    made = options.admin.acl.revoke(access_key, topic=topic, group=group, right=right)
    _tell(options, "revoked", access_key, made)


@acl.command()
@click.argument("addresses", nargs=-1)
@click.option("--none", "nobody", is_flag=True, help="From nowhere.")
@pass_options
@told
def white(options: Options, addresses: tuple[str, ...], nobody: bool) -> None:
    """From where nobody needs an account: shown without ADDRESSES, else replaced by them."""
    if addresses and nobody:
        raise click.UsageError("--none takes all of them away: give no addresses")
    if addresses or nobody:
        made = options.admin.acl.set_white_addresses(addresses)
        _tell(options, "changed", "the white list", made)
        return
    found = options.admin.acl.white_addresses
    output.rows([{"address": address} for address in found], ["address"], options.style)


@acl.command()
@click.argument("access_key")
@click.argument("action", type=click.Choice(["PUB", "SUB", "ADMIN"]))
@click.option("--topic", default=None)
@click.option("--group", default=None)
@pass_options
@told
def test(
    options: Options, access_key: str, action: str, topic: str | None, group: str | None
) -> None:
    """Whether an account may, without trying it: exit code 0 or 1."""
    found = options.admin.acl.test(access_key, action, topic=topic, group=group)
    output.record({"account": access_key, **found}, options.style)
    if not found["allowed"]:
        raise click.exceptions.Exit(1)


@acl.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@pass_options
@told
def import_file(options: Options, file: str) -> None:
    """Put the accounts and the white list of RocketMQ's plain_acl.yml in the place of those that
    there are. A file with any fault changes nothing; all its faults are told.
    """
    access = options.admin.acl
    mapping = read_yaml(FileSystem().read_whole(file), file)
    accounts = mapping.get("accounts") if isinstance(mapping, dict) else None
    listed = accounts if isinstance(accounts, list) else []
    kept = {str(account.get("accessKey")) for account in listed if isinstance(account, dict)}
    gone = [user["access_key"] for user in access.users() if user["access_key"] not in kept]
    if gone:
        options.confirm(f"{file} does not have {', '.join(gone[:20])}: delete what it lacks?")
    _tell(options, "imported", file, access.import_plain_acl(file))


@acl.command()
@click.option(
    "--secrets",
    "file",
    type=click.Path(dir_okay=False),
    default=None,
    help="Write them with their secrets to this new file, readable for you only.",
)
@pass_options
@told
def export(options: Options, file: str | None) -> None:
    """All accounts as a plain_acl.yml on standard output, without secrets (JSON with --format
    json); with --secrets to a file that can be imported again.
    """
    if file is None:
        found = options.admin.acl.export()
        if options.style == "json":
            output.record(found, options.style)
        else:
            click.echo(write_yaml(found), nl=False)
        return
    files = FileSystem()
    if files.exists(file):
        raise ConfigError(f"{file} is there already: give another name", file)
    path = str(Path(file).absolute())
    files.write_private(path, write_yaml(options.admin.acl.export(secrets=True)).encode())
    output.record({"file": path}, options.style)


def _rows(user: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [
        {"access_key": user["access_key"], "kind": kind, "name": name, "right": right}
        for kind in ("topic", "group")
        for name, right in {**user[f"{kind}s"], DEFAULT: user[f"default_{kind}"]}.items()
    ]
    if not user["admin"]:
        return found
    told = {"access_key": user["access_key"], "kind": "cluster", "name": "", "right": "ADMIN"}
    return [told, *found] if user["topics"] or user["groups"] else [told | {"name": EVERYTHING}]


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of an account; the rest is left out."""
    found = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in ("topics", "groups")
    }
    for name in ("topics", "groups"):
        if settings[name]:
            found[name] = dict(_entry(text) for text in settings[name])
    return found


def _entry(text: str) -> tuple[str, str]:
    name, equals, right = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"{text!r} is no NAME=RIGHT; write 'orders=PUB|SUB'")
    return name, right


@click.command()
@click.option("--lines", default=50, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--since", default="", help="A time (UTC), or its beginning: 2026-11-22T10:00.")
@click.option("--who", default="", help="A part of an account's name or of an address.")
@click.option("--request", default="", help="A part of a request's name, or its code.")
@click.option("--refused", is_flag=True, help="Only refusals.")
@pass_options
@watched
@told
def audit(options: Options, lines: int, since: str, who: str, request: str, refused: bool) -> None:
    """The newest lines of the audit logs of all brokers and name servers, oldest first. `told`: of
    a change what is new, and what was; of a refusal or failure why. JSON has the lines as they are.
    """
    found = options.connect().audit(
        lines=lines, since=since, who=who, refused=refused, request=request
    )
    if options.style == "json":
        output.rows(found, sorted({name for line in found for name in line}), options.style)
        return
    if not found:
        click.echo("nothing was refused or changed yet")
        return
    output.rows(
        [
            {
                **line,
                "who": line.get("account") or line.get("address"),
                "resources": " ".join(line.get("resources", ())),
                "told": line.get("reason") or _pairs(line.get("old"), line.get("new")),
            }
            for line in found
        ],
        AUDIT_COLUMNS,
        options.style,
    )


def _secret(file: Path | None, ask: bool) -> str | None:
    """None = none was given."""
    if file is not None and ask:
        raise click.UsageError("give --secret-file or --ask-secret, not both")
    if ask:
        return str(click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True))
    if file is None:
        return None
    text = FileSystem().read_whole(str(file)).decode("utf-8", "replace").strip()
    if "secretKey" not in text:
        return text
    found = read_yaml(text, str(file))
    secret = found.get("secretKey") if isinstance(found, dict) else None
    if secret is None:
        raise ConfigError(f"{file} has no secretKey at its top", str(file))
    return str(secret)


def _tell(options: Options, did: str, what: str, made: Mapping[str, Any]) -> None:
    """What a change did; a secret that was made is shown here and nowhere else."""
    found: dict[str, Any] = {"done": f"{did}: {what}", "version": made["version"]}
    if "secret_key" in made:
        found["secret_key"] = made["secret_key"]
    if options.style == "json":
        found |= {name: made[name] for name in ("before", "after", "untold")}
    output.record(found, options.style)
    for member, why in made["untold"].items():
        click.echo(f"{member} does not know it yet, and is told when it answers: {why}", err=True)


def _pairs(old: object, new: object) -> str:
    """What is new, with what it was; of a change only what differs."""
    before = old if isinstance(old, dict) else {}
    after = new if isinstance(new, dict) else {}
    return " ".join(
        f"{name}={value}" + (f" (was {before[name]})" if name in before else "")
        for name, value in after.items()
        if value != before.get(name)
    )
