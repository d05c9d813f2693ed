"""Every command of Apache RocketMQ 4.9.7's own ``mqadmin`` prints of our cluster what it prints of
Apache's, in kind: the same lines, but for numbers, times, ids and addresses.

``AdminCheck`` runs the commands in one JVM beside a producer and a push consumer of RocketMQ's
client, which sent and consumed the same twelve messages on either side. Where the two sides differ,
the row says what each of them prints.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.test_client_interop import ours
from tools import interop

TIMEOUT_S = 240
BODIES = "/tmp/rocketmq/msgbodys"
"""Where mqadmin writes the body of a message that it prints, whatever it is told."""


@dataclass(frozen=True)
class Same:
    """Both sides print the same lines in kind; each also matches ``says``."""

    says: str = ""


@dataclass(frozen=True)
class Differs:
    """Each side matches its own pattern."""

    theirs: str
    ours: str


@dataclass(frozen=True)
class Names:
    """``name : value`` lines: ours tell every name that theirs tell, but for ``absent`` (a pattern)
    and perhaps more; ``says``: of ours.
    """

    absent: str
    says: str = ""


Expectation = Same | Differs | Names
NO_POOLS = (
    "EndTransaction.*|dispatchMaxBuffer|.*EntireTimeMax|putLatency.*|putMessageDistributeTime|"
    "putMessageFailedTimes|commitLogDiskRatio_.*|sendThreadPoolQueueCapacity"
)
"""Of queues and locks that this broker has not, and latencies that it does not measure."""
A_RATE = r"(?!0\.00)\d+\.\d\d"
NETTY = "server.*|client.*|use.*Selector|writeBuffer.*"
MESSAGE = r"(?s)Topic: +Orders.*Tags: .*odd.*Keys: .*key-3.*Queue Offset: +0"
NO_ACCOUNTS = Differs(r"accessValidator.* is null|timeout", "has no accounts; start it with")
NO_ROUTE = Differs("CODE: 17", "CODE: 17")

COMMANDS: tuple[tuple[str, Expectation], ...] = (
    # rates are those of the last minute: asked for first
    ("statsAll", Same(r"Orders +billing +\d+ +\d+\.\d\d +\d+\.\d\d +\d+ +\d+")),
    (
        "statsAll -t Orders",
        Differs(r"Orders +billing", rf"Orders +billing +0 +{A_RATE} +{A_RATE} +12 +12\b"),
    ),
    ("statsAll -a", Differs("#Topic", r"Orders +billing +0 .* 12 +12\b")),
    ("topicList", Same("Orders")),
    ("topicList -c", Same(r"Orders +billing")),
    ("updateTopic -b {broker} -t Fresh -r 3 -w 3", Same("success")),
    ("updateTopic -c {cluster} -t Fresh2 -r 2 -w 2", Same("success")),
    ("updateTopic -c {cluster} -t Ordered -r 2 -w 2 -o true", Same("set cluster orderConf")),
    ("updateTopic -b {broker} -t Unit -r 2 -w 2 -u true", Same("topicSysFlag=1")),
    ("updateTopic -b {broker} -t UnitSub -r 2 -w 2 -s true", Same("topicSysFlag=2")),
    ("updateTopicPerm -b {broker} -t Fresh -p 4", Same("from 6 to 4")),
    ("topicRoute -t Orders", Same('"readQueueNums":4')),
    ("topicRoute -t Orders -l", Same("broker-a")),
    ("topicClusterList -t Orders", Same()),
    ("topicStatus -t Orders", Same("broker-a +3 +0 +3")),
    ("topicStatus -t NoSuchTopic", NO_ROUTE),
    ("allocateMQ -t Orders -i 10.0.0.1,10.0.0.2", Same('"queueId":3')),
    ("updateOrderConf -t Orders -v broker-a:4 -m put", Same("success")),
    ("updateOrderConf -t Orders -m get", Same(r"orderConf=\[broker-a:4\]")),
    ("updateOrderConf -t Orders -m delete", Same("success")),
    ("updateOrderConf -t Orders -m get", Same("CODE: 22")),
    ("updateKvConfig -s NS -k K -v V", Same("success")),
    ("deleteKvConfig -s NS -k K", Same("success")),
    ("wipeWritePerm -b broker-a", Same(r"OK, [1-9]\d*")),
    ("addWritePerm -b broker-a", Same(r"OK, [1-9]\d*")),
    (
        "getNamesrvConfig",
        Names(f"{NETTY}|kvConfigPath|configStorePath|rocketmqHome|clusterTest|productEnvName"),
    ),
    ("updateNamesrvConfig -k orderMessageEnable -v true", Same("success")),
    ("updateSubGroup -b {broker} -g fresh-group", Same("success")),
    ("updateSubGroup -c {cluster} -g fresh-group -r 3", Same("success")),
    ("getConsumerConfig -g fresh-group", Same(r"retryMaxTimes += +3")),
    ("deleteSubGroup -b {broker} -g fresh-group -r true", Same("success")),
    ("clusterList", Same(r"broker-a +0 +127\.0\.0\.1:\d+ +V4_9_7 ")),
    ("clusterList -m", Same(r"broker-a +0 +0 +[12]\d +12\b")),
    (
        "brokerStatus -b {broker}",
        Names(NO_POOLS, r"(?s)msgPutTotalTodayNow +: [12]\d\n.*putMessageSizeTotal +: [1-9]"),
    ),
    ("brokerStatus -c {cluster}", Names(rf"\S+ +({NO_POOLS})")),
    ("getBrokerConfig -b {broker}", Names(".*", r"brokerRole += +ASYNC_MASTER")),
    ("getBrokerConfig -c {cluster}", Names(".*", r"fileReservedTime += +72")),
    ("producer -b {broker}", Same(r"producer group \(makers\)")),
    ("producerConnection -g makers -t Orders", Same("JAVA +V4_9_7")),
    ("producerConnection -g nobody -t Orders", Same("CODE: 1 ")),
    ("consumerConnection -g billing", Same("(?s)JAVA +V4_9_7.*CONSUME_PASSIVELY")),
    ("consumerConnection -g nobody", NO_ROUTE),
    ("consumerProgress", Same(r"billing +1 +V4_9_7 +PUSH +CLUSTERING")),
    ("consumerProgress -g billing", Same(r"(?s)Orders +broker-a +3 +3 +3 .*Consume TPS: \d")),
    (
        "consumerProgress -g billing -s true",
        Same(r"Orders +broker-a +3 +3 +3 +\d+\.\d+\.\d+\.\d+ +0 "),
    ),
    ("consumerStatus -g billing", Same("(?s)Same subscription.*Rebalance OK")),
    (
        "consumerStatus -g billing -i {client}",
        Same(r"(?s)Consumer MQ Detail.*Orders.*Consumer RT&TPS.*Orders"),
    ),
    (
        "consumerStatus -g billing -i {client} -s",
        Differs("(?s)Consumer jstack.*STATE: ", "(?s)Consumer jstack.*STATE: "),
    ),
    ("brokerConsumeStats -b {broker}", Same(r"Orders +billing +broker-a +3 +3 +3 ")),
    ("brokerConsumeStats -b {broker} -o true", Same("Diff Total: 0")),
    ("queryMsgById -i {offset id 3}", Same(MESSAGE)),
    ("queryMsgById -i {offset id 3} -g billing -d {client}", Same("CR_SUCCESS")),
    ("queryMsgById -i 7F00000100002A9F00000000FFFFFFFF", Same()),
    ("queryMsgByKey -t Orders -k key-3", Same(" 3 +0")),
    ("queryMsgByKey -t Orders -k nothing", Same()),
    ("queryMsgByUniqueKey -t Orders -i {id 3}", Same(MESSAGE)),
    ("queryMsgByUniqueKey -t Orders -i {id 3} -a true", Same(MESSAGE)),
    ("queryMsgByUniqueKey -t Orders -i {id 3} -g billing -d {client}", Same("CR_SUCCESS")),
    ("queryMsgByOffset -t Orders -b broker-a -i 3 -o 0", Same(MESSAGE)),
    ("queryMsgByOffset -t Orders -b broker-a -i 3 -o 77", Same()),
    ("queryMsgTraceById -i {id 3}", Same(r"Pub +makers")),
    ("printMsg -t Orders -d true", Same("(?s)BODY: body-3")),
    ("printMsg -t Orders -s odd -d true -b {begin} -e {end}", Same("(?s)body-1.*NO_MATCHED_MSG")),
    ("printMsgByQueue -t Orders -a broker-a -i 1 -p true -d true", Same("BODY: body-9")),
    ("printMsgByQueue -t Orders -a broker-a -i 1 -f true", Same("Tag: odd +Count: 3")),
    ("consumeMessage -t Orders -c 3", Same("(?s)Consume ok.*body-3.*body-7.*body-11")),
    ("consumeMessage -t Orders -b broker-a -i 2 -o 1 -c 2", Same("(?s)body-6.*body-10")),
    ("sendMessage -t Fresh2 -p hello -k k1 -c t1", Same("SEND_OK")),
    ("sendMessage -t Fresh2 -p hello -b broker-a -i 1", Same("broker-a +1 +SEND_OK")),
    ("sendMsgStatus -b broker-a -s 64 -c 3", Same("SEND_OK")),
    ("checkMsgSendRT -t Fresh2 -a 3 -s 64", Same("(?s)true.*Avg RT: ")),
    ("clusterRT -a 2 -s 64 -i 1", Differs(r"broker-a +\d.* 2 +0", r"broker-a +\d.* 2 +0")),
    ("queryCq -t Orders -q 1 -i 0 -c 2 -b {broker}", Same("max: 3, min: 0")),
    (
        "queryCq -t Orders -q 1 -i 0 -c 2 -b {broker} -g billing",
        Differs('(?s)"subString":"\\*".*max: 3', '(?s)"subString":"\\*".*max: 3.*eval=true'),
    ),
    ("cloneGroupOffset -s billing -d copy -t Orders", Same("clone group offset success")),
    ("consumerProgress -g copy", NO_ROUTE),
    ("resetOffsetByTime -g billing -t Orders -s {begin}", Same("broker-a +3 +0")),
    ("resetOffsetByTime -g copy -t Orders -s now", Same("broker-a +3 +3")),
    ("skipAccumulatedMessage -g billing -t Orders", Same("broker-a +3 +3")),
    ("cleanExpiredCQ -b {broker}", Same("success")),
    ("cleanExpiredCQ -c {cluster}", Same("success")),
    ("cleanUnusedTopic -b {broker}", Same("success")),
    ("cleanUnusedTopic -c {cluster}", Same("success")),
    ("deleteExpiredCommitLog -b {broker}", Same("success")),
    ("updateAclConfig -b {broker} -a account1 -s secret123", NO_ACCOUNTS),
    ("deleteAclConfig -b {broker} -a account1", NO_ACCOUNTS),
    ("updateGlobalWhiteAddr -b {broker} -g 10.10.10.1", NO_ACCOUNTS),
    ("exportMetadata -c {cluster} -f {directory}/export", Same("metadata.json success")),
    ("exportMetadata -b {broker} -t -f {directory}/export", Same("topic.json success")),
    ("exportMetadata -b {broker} -g -f {directory}/export", Same("Group.json success")),
    ("exportConfigs -c {cluster} -f {directory}/export", Same("configs.json success")),
    ("consumeMessage -t Orders -c 3", Same("(?s)Consume ok.*body-3.*body-7.*body-11")),
    ("exportMetrics -c {cluster} -f {directory}/export", Same("metrics.json success")),
    ("startMonitoring", Same()),
    ("queryMsgById -i {offset id 3} -s true", Same("SEND_OK")),
    ("deleteTopic -c {cluster} -t Fresh", Same("success")),
)
ELSEWHERE = {
    "getAclConfig": "Apache's broker without accounts never answers",
    "clusterAclConfigVersion": "the same",
    "updateBrokerConfig": "the names of settings are those of each product",
}

Told = dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """(ours, theirs): what each command printed, and ``names``; both run beside one another."""
    directory = tmp_path_factory.mktemp("mqadmin")
    commands = directory / "commands"
    lines = [f"{number}\t" + "\t".join(_words(text)) for number, (text, _) in enumerate(COMMANDS)]
    commands.write_text("\n".join(lines))
    with (
        ours(directory / "ours") as our_name_server,
        interop.started(
            "PeerServer", directory / "theirs", "ASYNC_FLUSH", flags=interop.SMALL_STORE
        ) as server,
    ):
        assert server.stdout is not None
        their_name_server = server.stdout.readline().strip()
        running = [
            subprocess.Popen(
                interop.command("AdminCheck", name_server, directory / side, commands),
                cwd=interop.TARGET,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for side, name_server in (("home-o", our_name_server), ("home-t", their_name_server))
        ]
        try:
            mine, other = [_lines(process) for process in running]
        finally:
            for process in running:
                process.kill()
    for path in re.findall(rf"{BODIES}/\w+", json.dumps([mine, other])):
        Path(path).unlink(missing_ok=True)
    return mine, other


def _words(text: str) -> list[str]:
    return [word.replace("~", " ") for word in re.sub(r"(\{[a-z ]*)", _held, text).split(" ")]


def _held(found: re.Match[str]) -> str:
    """Blanks in a name to be filled in separate no arguments."""
    return found[0].replace(" ", "~") if found[0].startswith("{") else found[0]


def _lines(process: subprocess.Popen[str]) -> Told:
    out, complaints = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, f"{complaints[-3000:]}\n{out[-1000:]}"
    found: Told = {}
    for line in map(json.loads, out.splitlines()):
        found[line["command"]] = line["printed"]
        found.update({"names": line["names"]} if "names" in line else {})
    return found


def shape(printed: str, names: Mapping[str, str]) -> list[str]:
    """The lines of an output in kind, sorted: without what differs from run to run."""
    for value in sorted((names["cluster"], names["directory"]), key=len, reverse=True):
        printed = re.sub(rf"(?<![A-Za-z\d]){re.escape(value)}(?![A-Za-z\d])", "<name>", printed)
    for pattern, word in (
        (r"\b[0-9A-F]{32,}\b|(?<=originalMsgId=)[0-9A-F]{32}", "<id>"),
        (r"(\S+Lambda\$\S+|@[0-9a-f]{5,8})\b", "<object>"),
        (r"\d+(\.\d+)*", "#"),
        (r"-#", "#"),
    ):
        printed = re.sub(pattern, word, printed)
    found = [re.sub(r"\s+", " ", line).strip() for line in printed.splitlines()]
    # the program's own client is there from its first heartbeat on, which comes every 30 s
    left_out = r"at |\.\.\. |See http|For mo|.*clientId=\S+@check,"
    return sorted(line for line in found if line and not re.match(left_out, line))


def names_of(printed: str) -> set[str]:
    """The names of ``name : value`` and ``name = value`` lines."""
    return set(re.findall(r"^(\S+(?: +\S+)??) *[:=] ", printed, re.MULTILINE))


@pytest.mark.parametrize(("number", "text"), [(n, text) for n, (text, _) in enumerate(COMMANDS)])
def test_a_command_prints_of_ours_what_it_prints_of_theirs(
    told: tuple[Told, Told], number: int, text: str
) -> None:
    (mine, other), expected = (side[str(number)] for side in told), COMMANDS[number][1]
    match expected:
        case Same(says):
            assert shape(mine, told[0]["names"]) == shape(other, told[1]["names"])
            assert re.search(says, mine), mine[-3000:]
        case Differs(theirs, ours_says):
            assert re.search(theirs, other), other[-3000:]
            assert re.search(ours_says, mine), mine[-3000:]
        case Names(absent, says):
            plain = [
                re.sub(re.escape(side["names"]["broker"]), "<broker>", printed)
                for side, printed in zip(told, (mine, other), strict=True)
            ]
            missing = names_of(plain[1]) - names_of(plain[0])
            assert not [name for name in missing if not re.fullmatch(absent, name)], missing
            assert names_of(plain[1]) and re.search(says, mine), mine[-3000:]


def test_no_command_of_the_jar_is_left_out(told: tuple[Told, Told]) -> None:
    tested = {text.split()[0] for text, _ in COMMANDS} | ELSEWHERE.keys()
    assert set(told[1]["all"].split()) == tested


@pytest.mark.parametrize(("program", "says"), [("exporter", "lag = 0"), ("dashboard", "key-3 odd")])
def test_programs_that_watch_a_cluster_are_answered_alike(
    told: tuple[Told, Told], program: str, says: str
) -> None:
    """The Prometheus exporter's round, the Dashboard's pages: call for call."""
    mine, other = (side[program].splitlines() for side in told)
    assert mine == other
    assert any(says in line for line in mine)


def test_what_is_exported_tells_topics_settings_and_rates(told: tuple[Told, Told]) -> None:
    mine, other = (_exported(Path(side["names"]["directory"])) for side in told)
    assert (
        mine["metadata"]["topicConfigTable"].keys() == other["metadata"]["topicConfigTable"].keys()
    )
    assert mine["topic"]["topicConfigTable"]["Orders"]["writeQueueNums"] == 4
    settings = mine["configs"]["brokerConfigs"]["broker-a"]
    assert settings.keys() == other["configs"]["brokerConfigs"]["broker-a"].keys()
    quota = mine["metrics"]["evaluateReport"]["broker-a"]["runtimeQuota"]
    assert float(quota["messageAverageSize"]) > 100 and quota["tps"]["normalOutTps"] > 0


def _exported(directory: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (directory / "export").iterdir()}
