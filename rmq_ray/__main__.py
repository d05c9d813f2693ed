"""``python -m rmq_ray`` is ``rmq-ray``: the command line, whose import can be interrupted, too."""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; ends the process. Ctrl-C while it is still loaded ends it as later."""
    try:
        from rmq_ray.cli.main import main as command_line  # noqa: PLC0415 - loading takes a while

        command_line()
    except KeyboardInterrupt:
        sys.stderr.write("\nAborted!\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
