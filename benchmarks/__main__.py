"""Run benchmarks and say which figures were reached; exit code 1 where one was missed.

python -m benchmarks [names] [--scale 0.1] [--peers] [--ahead] [--json FILE]
    [--report PAGE]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import (
    bench_filter,
    bench_rebalance,
    console,
    consume,
    dataframe,
    delay,
    durable_queue,
    failover,
    flat,
    flush,
    foreign,
    growth,
    latency,
    outage,
    parked,
    peers,
    produce,
    recovery,
    replication,
    scale,
    scan,
    scrape,
    secured,
    serve_tasks,
    stream,
    table,
    transaction,
    transfer_queue,
    ways,
)
from benchmarks.kafka_peer import KAFKA
from benchmarks.python_peers import rows, turns
from benchmarks.report import (
    TITLE,
    around_section,
    circumstances,
    write_report,
    write_section,
)
from benchmarks.scene import SECONDS, scene

PARTS = {
    "produce": produce.run,
    "consume": consume.run,
    "latency": latency.run,
    "flush": flush.run,
    "growth": growth.run,
    "recovery": recovery.run,
    "replication": replication.run,
    "failover": failover.run,
    "dataframe": dataframe.run,
    "flat": flat.run,
    "scan": scan.run,
    "scale": scale.run,
    "secured": secured.run,
    "table": table.run,
    "foreign": foreign.run,
    "transaction": transaction.run,
    "delay": delay.run,
    "ways": ways.run,
    "rebalance": bench_rebalance.run,
    "serve": serve_tasks.run,
    "queue": durable_queue.run,
    "transfer-queue": transfer_queue.run,
    "parked": parked.run,
    "filter": bench_filter.run,
    "console": console.run,
    "scrape": scrape.run,
    "stream": stream.run,
    "outage": outage.run,
    "python-peers": turns.run,
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PARTS)}; default all")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="1 = full length; 0.1 for a quick look"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help=(
            f"run Apache RocketMQ 4.9.7 and Apache Kafka {KAFKA} on the same work, right before; "
            f"python-peers: Kafka, NATS JetStream and Redis Streams, in turns"
        ),
    )
    parser.add_argument(
        "--ahead",
        action="store_true",
        help=(
            "precedence over the machine's other work (root; for dataframe, flat, replication "
            "and scan)"
        ),
    )
    parser.add_argument(
        "--log-gb",
        type=float,
        default=0.0,
        help="replication: copy a log of so many GB, too; needs 2.2 times that on the disk",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="outage: how long the downstream is gone, at --scale 1; default ten minutes",
    )
    parser.add_argument(
        "--json", type=Path, default=None, help="also write the figures to this file"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=None,
        help="write them as a table between the markers of this page; no row of another run stays",
    )
    parser.add_argument(
        "--directory",
        default=None,
        help="where the stores go; default the system's temporary directory",
    )
    arguments = parser.parse_args()
    names = arguments.names or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"unknown benchmark {name!r}; there are {', '.join(PARTS)}")
    if arguments.report:
        try:
            for title in {rows.TITLE if name == "python-peers" else TITLE for name in names}:
                around_section(arguments.report, title)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    began = circumstances(sys.argv[1:])
    with scene(arguments.scale, arguments.directory) as where:
        where.with_peers, where.ahead = arguments.peers, arguments.ahead
        where.log_gb, where.seconds = arguments.log_gb, arguments.seconds
        for name in names:
            if arguments.peers:
                where.peers.update(peers.run(peers.BESIDE.get(name, []), arguments.scale))
            print(f"--- {name}", flush=True)
            PARTS[name](where)
        if arguments.json:
            where.report.save(arguments.json)
        if arguments.report:
            if figures := [each for each in where.report.figures if not each.apart]:
                write_report(arguments.report, began, figures)
            for title, text in where.tables.items():
                write_section(arguments.report, f"{began}\n\n{text}", title)
        missed = where.report.missed
    print(f"--- {len(missed)} missed" if missed else "--- every target reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
