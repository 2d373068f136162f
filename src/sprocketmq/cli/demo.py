"""``sprocketmq demo``: from a broker to a checked Spark table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sprocketmq.cli.argument_parser import ArgumentParser
from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK
from sprocketmq.cli.output import print_json
from sprocketmq.errors import ConfigError

DESCRIPTION = "Run the demo: 336,776 flights through a broker and Spark into a table."
DEFAULT_OUTPUT = Path("demo-output")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = ArgumentParser("demo", description="Play the flights out of New York in 2013 through a broker into a checked Spark table.")
    p.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, metavar="DIR", help="directory for tables, plot and report (default: %(default)s)"
    )
    p.add_argument("--keep", action="store_true", help="leave the cluster running, and print commands to look at it")
    p.add_argument("--limit", type=_positive, metavar="N", help="play only the first N flights")
    p.add_argument("--json", action="store_true", help="print the report as JSON, and no progress")
    return p


def run(arguments: Sequence[str]) -> int:
    """Run the demo with the words after ``demo`` and return its exit code: 0 only when every check passed."""
    options = parser().parse_args(arguments)
    try:
        from sprocketmq.demo.report import show
        from sprocketmq.demo.run import DemoSettings, keep_running, run_demo
    except ModuleNotFoundError as e:
        raise ConfigError(f"the demo needs {e.name}: pip install 'sprocketmq[demo]'") from None
    from rich.console import Console

    console = None if options.json else Console()
    outcome = run_demo(DemoSettings(options.output, limit=options.limit, keep=options.keep), console=console)
    kept = keep_running(options.output) if options.keep else None
    if console is None:
        print_json(outcome.report if kept is None else {**outcome.report, "cluster": {"namesrv": kept.namesrv, "pid": kept.pid}})
    else:
        show(console, outcome)
        if kept is not None:
            console.print(f"\nThe cluster is running (process {kept.pid}, store {kept.store}). Look at it:")
            for verb in ("topic status flights", "consume flights --from first --count 3"):
                console.print(f"  {sys.executable} -m sprocketmq {verb} --namesrv {kept.namesrv}", highlight=False, soft_wrap=True)
            console.print(f"Stop it with: kill {kept.pid}", highlight=False)
    return EXIT_OK if outcome.passed else EXIT_FAILURE


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number
