"""``sprocketmq pipeline``: the jobs of ``sprocketmq.spark.jobs``, one module each with a function ``command``.

Each module is a subcommand of the same name (``rebuild_index`` is ``rebuild-index``) and is imported only when it is run or listed: at the
top level it imports only typer and this package, inside its function everything else.
"""

import contextlib
import pkgutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer
from typer.core import TyperGroup

from sprocketmq.errors import SprocketError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from sprocketmq.cli.target import Target
    from sprocketmq.spark.jobs.progress import JobProgress, Report, Summary

SummaryT = TypeVar("SummaryT", bound="Summary")

Master = Annotated[str | None, typer.Option(metavar="URL", help="Spark master, such as spark://HOST:7077. Default: this machine.")]
Cores = Annotated[int | None, typer.Option(min=1, metavar="N", help="Concurrent tasks on this machine. Default: all cores.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Heap of the JVM, such as 2g.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and no progress.")]
DEFAULT_MEMORY = "1g"


class JobGroup(TyperGroup):
    """The modules of this package as subcommands."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Click's signature
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=ctx.command.context_settings)
        single.command(cmd_name)(import_module(f"{__name__}.{cmd_name.replace('-', '_')}").command)
        return typer.main.get_command(single)


pipeline_app = typer.Typer(
    name="pipeline",
    cls=JobGroup,
    help="Run jobs on Spark: land topics in tables, replay messages, rebuild index files, audit stores.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@pipeline_app.callback()
def pipeline() -> None:
    """Run jobs on Spark: land topics in tables, replay messages, rebuild index files, audit stores."""


@dataclass(frozen=True)
class SparkOptions:
    """The session options of a subcommand."""

    master: str | None = None
    cores: int | None = None
    memory: str = DEFAULT_MEMORY


def security_of(target: "Target") -> dict[str, str]:
    """Return credentials and TLS of a target as options of the format; files by their absolute names, which the workers need."""
    files = {"secure": target.secure, "credentials.file": target.access_key_file, "tls.ca.file": target.tls_ca}
    options = {name: str(path.absolute()) for name, path in files.items() if path is not None}
    return options if target.tls is None else {**options, "tls": str(target.tls).lower()}


def run_job(title: str, work: "Callable[[Report], SummaryT]", *, as_json: bool = False) -> SummaryT:
    """Run ``work`` under a progress bar, print its summary and return it. ``title`` names the work ("landing orders").

    The bar is shown on stderr if that is a terminal, never with ``as_json``. Errors are raised as one sentence: a SprocketError unchanged,
    an error of Spark as ConfigError (wrong call) or FatalError.
    """
    try:
        with JobBar(title, shown=not as_json) as bar:
            summary = work(bar)
    except SprocketError:
        raise
    except Exception as e:
        from sprocketmq.spark.errors import in_one_sentence

        told = in_one_sentence(e)
        if told is e:
            raise
        raise told from e
    show(summary, as_json=as_json)
    return summary


def run_spark_job(
    title: str,
    work: "Callable[[SparkSession, Report], SummaryT]",
    *,
    spark: SparkOptions,
    as_json: bool = False,
) -> SummaryT:
    """Do as run_job with a Spark session that lasts for the job. The JVM's output is used only in errors."""

    def with_session(report: "Report") -> SummaryT:
        with _session(title, spark) as session:
            return work(session, report)

    return run_job(title, with_session, as_json=as_json)


@contextlib.contextmanager
def _session(title: str, options: SparkOptions) -> "Iterator[SparkSession]":
    from sprocketmq.spark import session

    with tempfile.TemporaryDirectory(prefix="sprocketmq-spark-") as directory:
        log_file = Path(directory, "spark.log")
        spark = session(
            f"sprocketmq {title}",
            master=options.master,
            cores=options.cores,
            memory=options.memory,
            log_file=log_file,
            conf={"spark.sql.warehouse.dir": f"{directory}/warehouse"},
        )
        try:
            yield spark
        finally:
            spark.stop()


def show(summary: "Summary", *, as_json: bool) -> None:
    """Print a summary: one aligned line for each value, or one JSON document."""
    from sprocketmq.cli.output import print_json

    if as_json:
        print_json(summary.as_dict())
        return
    rows = summary.rows()
    if not sys.stdout.isatty():
        for label, value in rows:
            print(f"{label}\t{value}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    Console().print(table, markup=False)


class JobBar:
    """A ``Report`` that shows a job's progress on stderr. Without a terminal it shows nothing and does not import rich."""

    def __init__(self, title: str, *, shown: bool) -> None:
        self._title = title
        self._shown = shown and sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[detail]}"), console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, count="", detail="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: "JobProgress") -> None:
        if self._bar is None:
            return
        of = "" if progress.total is None else f" of {progress.total:,}"
        elapsed = self._bar.tasks[self._task].elapsed or 0.0
        rate = f" {progress.done / elapsed:,.0f}/s" if elapsed >= 1 else ""
        count = f"{progress.done:,}{of} {progress.unit}{rate}"
        self._bar.update(self._task, total=progress.total, completed=progress.done, count=count, detail=progress.detail)
