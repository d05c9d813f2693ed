"""``mqadmin``: names and options of RocketMQ's operators for commands of ours.

Decides which of ours a name stands for (``EQUALS``), and which is closest where none does the same
(``CLOSEST``; for what is in neither, Apache's own mqadmin). Does not decide what a command does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from rmq_ray.cli.base.context import Options, pass_options, told
from rmq_ray.errors import ConfigError

NAME_SERVER = "n=namesrvAddr"
EQUALS = {
    "addWritePerm": ("broker undrain {b}", "b=brokerName"),
    "cloneGroupOffset": (
        "group clone --execute {s} {d} {t}",
        "s=srcGroup d=destGroup t=topic o=offline",
    ),
    "clusterList": ("broker list [--watch={i}]", "i=interval"),
    "consumerConnection": ("group describe {g}", "g=consumerGroup"),
    "consumerProgress": ("group lag {g} or group list", "g=groupName"),
    "consumerStatus": (
        "client describe {g} {i} or group describe {g}",
        "g=consumerGroup i=clientId",
    ),
    "deleteAclConfig": ("acl user delete {a}", "a=accessKey c=clusterName"),
    "deleteSubGroup": ("group delete {g}", "g=groupName c=clusterName"),
    "deleteTopic": ("topic delete {t}", "t=topic c=clusterName"),
    "brokerStatus": ("status", "c=clusterName"),
    "getAclConfig": ("acl user list", "c=clusterName"),
    "queryMsgById": ("message get {i}", "i=msgId"),
    "queryMsgByKey": ("message find -- {t} {k}", "t=topic k=msgKey"),
    "queryMsgByUniqueKey": ("message get --topic={t} {i}", "t=topic i=msgId"),
    "queryMsgTraceById": ("message trace [--topic={t}] {i}", "i=msgId t=traceTopic"),
    "resetOffsetByTime": (
        "group seek --to={s} --execute {g} {t}",
        "g=group t=topic s=timestamp f=force",
    ),
    "sendMessage": (
        "produce [--key={k}] [--tag={c}] [{m}] -- {t} {p}",
        "t=topic p=body k=key c=tags m=msgTraceEnable",
    ),
    "skipAccumulatedMessage": ("group skip --execute {g} {t}", "g=group t=topic f=force"),
    "topicList": ("topic list --system", ""),
    "topicStatus": ("topic describe {t}", "t=topic"),
    "updateTopic": (
        "topic create [--queues={w}] [--perm={p}] {t}",
        "t=topic r=readQueueNums w=writeQueueNums p=perm c=clusterName",
    ),
    "updateTopicPerm": ("topic alter --perm={p} {t}", "t=topic p=perm c=clusterName"),
    "wipeWritePerm": ("broker drain {b}", "b=brokerName"),
}
"""mqadmin's name -> our command, with its options in braces (in brackets what may be left out;
behind "or" what runs without an option), and the short and long names of those options.
"""
CLOSEST = {
    "acl user update": "updateAclConfig",
    "acl white": "updateGlobalWhiteAddr",
    "bench e2e": "checkMsgSendRT clusterRT sendMsgStatus",
    "broker clean": "cleanExpiredCQ deleteExpiredCommitLog",
    "client list": "consumer",
    "consume": "consumeMessage printMsg printMsgByQueue",
    "group describe": "getConsumerConfig",
    "group lag": "getConsumerStatus",
    "message find": "queryMsgByOffset",
    "metrics": "exportMetrics startMonitoring statsAll",
    "broker settings": "getBrokerConfig",
    "broker set": "updateBrokerConfig",
    "group alter": "updateSubGroup",
    "status --format json": "exportConfigs",
    "store dump": "queryCq",
    "topic delete": "cleanUnusedTopic",
    "topic describe": "topicRoute",
}
"""Command of ours -> names of mqadmin that it comes closest to."""
APACHES_OWN = (
    "Apache's own mqadmin works with a cluster of `rmq-ray up --foreign open` (or acl): give it "
    "the address of a name server, which `rmq-ray status` shows, with -n"
)
OR = " or "
QUEUES = "8"
"""What mqadmin makes of a topic where -r or -w is not given."""


def _queues(given: dict[str, Any]) -> None:
    reads, writes = (given[letter] or QUEUES for letter in "rw")
    if reads != writes:
        raise ConfigError(
            f"-r {reads} and -w {writes}: a queue here is read and written; give the same number, "
            f"both {QUEUES} where they are left out"
        )
    given["w"] = writes


def _moment(given: dict[str, Any]) -> None:
    """mqadmin's ``now``, milliseconds, or ``2026-01-31#23:59:59:000``."""
    time = re.sub(r":(\d{3})$", r".\1", given["s"].replace("#", "T"))
    given["s"] = "last" if time == "now" else time


def _traced(given: dict[str, Any]) -> None:
    given["m"] = "--trace" if given["m"] == "true" else None


ADAPT: dict[str, Callable[[dict[str, Any]], None]] = {
    "updateTopic": _queues,
    "resetOffsetByTime": _moment,
    "sendMessage": _traced,
}


class Table(click.Group):
    """Its commands are the names above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those that have an equal."""
        return sorted(EQUALS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """What runs ours, or says what is closest."""
        if cmd_name in EQUALS:
            return Equal(cmd_name, *EQUALS[cmd_name])
        close = [f"`rmq-ray {ours}`" for ours in CLOSEST if cmd_name in CLOSEST[ours].split()]
        said = f"closest is {close[0]}" if close else APACHES_OWN

        @told
        def refuse(rest: object) -> None:
            raise ConfigError(f"no command here does what mqadmin's {cmd_name!r} does; {said}")

        rest = click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED)
        return click.Command(cmd_name, {"ignore_unknown_options": True}, refuse, [rest])


class Equal(click.Command):
    """One name: reads mqadmin's options and runs our command."""

    def __init__(self, name: str, ours: str, takes: str) -> None:
        self.ours = ours
        options = []
        for pair in [*takes.split(), NAME_SERVER]:
            letter, long = pair.split("=")
            needed = all(letter in _needed(way) for way in ours.split(OR))
            kind = click.Choice(["true"]) if long in ("force", "offline") else None
            names = [f"-{letter}", f"--{long}", letter]
            options.append(click.Option(names, required=needed, type=kind))
        shown = "rmq-ray " + re.sub(r"{(.)}", r"<-\1>", ours)
        super().__init__(
            name,
            callback=pass_options(told(self.run)),
            params=list(options),
            help=f"Run `{shown}`.",
            short_help=shown,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As always; says who takes an option that is mqadmin's and not ours."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(f"{error.format_message()} {APACHES_OWN}", ctx) from None

    def run(self, options: Options, /, **given: Any) -> Any:
        """Our command, on the cluster that is meant."""
        root = click.get_current_context().find_root()
        if "{c}" not in self.ours and (cluster := given.pop("c", None)):
            options.cluster = cluster
        if name_servers := given.pop("n"):
            _check_name_servers(options, name_servers)
        if adapt := ADAPT.get(str(self.name)):
            adapt(given)
        way = next(
            way
            for way in self.ours.split(OR)
            if all(given[letter] is not None for letter in _needed(way))
        )
        words = [
            piece.strip("[]").format_map(given)
            for piece in way.split()
            if not piece.startswith("[") or given[piece[piece.index("{") + 1]] is not None
        ]
        assert isinstance(root.command, click.Group)
        command = root.command.get_command(root, words[0])
        assert command is not None, "the table names commands that are there"
        with command.make_context(words[0], words[1:], parent=root) as sub:
            return command.invoke(sub)


def stands_for(name: str) -> click.Command | None:
    """The command of this name of mqadmin's, or what says which is closest; None for others."""
    known = name in EQUALS or any(name in names.split() for names in CLOSEST.values())
    return Table().get_command(click.Context(mqadmin), name) if known else None


def _needed(way: str) -> list[str]:
    """Letters of the options without which it does not run."""
    return re.findall(r"{(.)}", re.sub(r"\[.*?\]", "", way))


@click.group(cls=Table)
def mqadmin() -> None:
    """Commands by the names and options of RocketMQ's mqadmin: `mqadmin updateTopic -t orders -r 8
    -w 8`. Below is what each runs, at once as there; only what deletes asks first, unless -y is
    given. Other names are answered with what is closest.

    -n: a name server of the cluster that was found, or several, with semicolons. -c, where it is
    mqadmin's cluster: as --cluster.
    """


def _check_name_servers(options: Options, given: str) -> None:
    """A cluster is found through Ray; -n may say again where it is."""
    known = options.discovery.lookup().name_servers
    if not {server.replace("localhost", "127.0.0.1") for server in given.split(";")} & {*known}:
        raise ConfigError(
            f"-n {given}: cluster {options.cluster!r}, which was found through Ray, has "
            f"{', '.join(known)}; leave -n out, or name another one with --cluster. {APACHES_OWN}",
            given,
        )
