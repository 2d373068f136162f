"""The report of the demo: tables, a picture, and JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sprocketmq.demo.outcome import Course, Outcome
from sprocketmq.demo.verify import Check

_COLOURS = {"EWR": "#4c72b0", "JFK": "#dd8452", "LGA": "#55a868"}
_AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}


def summary_by(statistics: pa.Table, key: str) -> list[dict[str, Any]]:
    """Return flights and delays by ``key`` (origin or carrier), most flights first."""
    sums = [(name, "sum") for name in ("flights", "departed", "dep_delay_sum", "late_15", "wet_departed", "wet_dep_delay_sum")]
    found = statistics.group_by(key).aggregate([*sums, ("dep_delay_max", "max")]).sort_by([("flights_sum", "descending")])
    return [
        {
            key: row[key],
            "flights": row["flights_sum"],
            "cancelled": row["flights_sum"] - row["departed_sum"],
            "mean_delay_min": _mean(row["dep_delay_sum_sum"], row["departed_sum"]),
            "late_15_percent": _mean(100 * row["late_15_sum"], row["departed_sum"]),
            "mean_delay_in_rain_min": _mean(row["wet_dep_delay_sum_sum"], row["wet_departed_sum"]),
            "longest_delay_min": row["dep_delay_max_max"],
        }
        for row in found.to_pylist()
    ]


def _mean(total: int, count: int) -> float | None:
    return round(total / count, 2) if count else None


def with_means(statistics: pa.Table) -> pa.Table:
    """Return the statistics with mean delays added; null where nothing departed."""
    for name, total, count in (
        ("dep_delay_mean", "dep_delay_sum", "departed"),
        ("arr_delay_mean", "arr_delay_sum", "arrived"),
        ("wet_dep_delay_mean", "wet_dep_delay_sum", "wet_departed"),
    ):
        counts = statistics[count].cast(pa.float64())
        some = pc.if_else(pc.greater(counts, 0), counts, None)
        statistics = statistics.append_column(name, pc.divide(statistics[total].cast(pa.float64()), some))
    return statistics


def results_table(statistics: pa.Table) -> RenderableType:
    """Return the delays by airport and, below, by carrier."""
    tables = []
    for key, title in (
        ("origin", "Departure delays in minutes, by airport"),
        ("carrier", "... and by carrier, the ten with the most flights"),
    ):
        table = Table(title=title, title_justify="left", title_style="bold")
        table.add_column(key)
        for name in ("flights", "cancelled", "mean", "in rain", "longest", "15 or more"):
            table.add_column(name, justify="right")
        for row in summary_by(statistics, key)[:10]:
            table.add_row(
                f"{row[key]} {_AIRPORTS.get(row[key], '')}".strip(),
                f"{row['flights']:,}",
                f"{row['cancelled']:,}",
                _number(row["mean_delay_min"]),
                _number(row["mean_delay_in_rain_min"]),
                "-" if row["longest_delay_min"] is None else f"{row['longest_delay_min']:,}",
                _number(row["late_15_percent"], " %"),
            )
        tables.append(table)
    return Group(*tables)


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:,.1f}{unit}"


def weekly_delays(statistics: pa.Table) -> tuple[list[Any], dict[str, list[float]]]:
    """Return the first days of the weeks in ``statistics``, and for each airport its mean departure delay in each week."""
    week = pc.floor_temporal(statistics["day"].cast(pa.timestamp("s")), unit="week").cast(pa.date32())
    table = statistics.select(["origin", "departed", "dep_delay_sum"]).append_column("week", week)
    found = table.group_by(["origin", "week"]).aggregate([("departed", "sum"), ("dep_delay_sum", "sum")])
    weeks = sorted(set(found["week"].to_pylist()))
    lines: dict[str, list[float]] = {}
    for row in sorted(found.to_pylist(), key=lambda row: row["origin"]):
        line = lines.setdefault(row["origin"], [float("nan")] * len(weeks))
        if row["departed_sum"]:
            line[weeks.index(row["week"])] = row["dep_delay_sum_sum"] / row["departed_sum"]
    return weeks, lines


def draw_png(statistics: pa.Table, course: Course, path: Path) -> None:
    """Write the picture: delays by week and airport, delays by carrier, and the course of the run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weeks, lines = weekly_delays(statistics)
    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, height_ratios=[3, 2], width_ratios=[3, 2])
    above, below, run = figure.add_subplot(grid[0, :]), figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    for origin, delays in lines.items():
        above.plot(weeks, delays, label=f"{_AIRPORTS.get(origin, origin)} ({origin})", color=_COLOURS.get(origin), linewidth=1.8)
    above.set_title("Mean departure delay by week, flights out of New York in 2013", loc="left")
    above.set_ylabel("minutes")
    above.legend(frameon=False)
    above.grid(alpha=0.3)
    carriers = sorted(summary_by(statistics, "carrier"), key=lambda row: -(row["mean_delay_min"] or 0))
    places = np.arange(len(carriers))
    below.bar(places - 0.2, [row["mean_delay_min"] or 0 for row in carriers], 0.4, label="all departures", color="#8da0cb")
    below.bar(places + 0.2, [row["mean_delay_in_rain_min"] or 0 for row in carriers], 0.4, label="departures in rain", color="#4c72b0")
    below.set_xticks(places, [row["carrier"] for row in carriers])
    below.set_title("... and by carrier", loc="left")
    below.set_ylabel("minutes")
    below.legend(frameon=False)
    run.plot(course.seconds, [sent / 1000 for sent in course.sent], label="sent", color="#dd8452", linewidth=1.8)
    run.step(course.seconds, [rows / 1000 for rows in course.rows], where="post", label="in the table", color="#4c72b0", linewidth=1.8)
    for number, stopped in enumerate(course.stopped_s):
        run.axvline(stopped, color="#888888", linestyle=":", label="" if number else "query stopped, started again")
    run.set_title("How it went", loc="left")
    run.set_xlabel("seconds since the first flight")
    run.set_ylabel("thousand flights")
    run.legend(frameon=False, loc="lower right")
    for axes in (above, below, run):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def terminal_plot(statistics: pa.Table, width: int) -> Text:
    """Return the delays by week as a text plot of ``width`` columns."""
    import plotext

    weeks, lines = weekly_delays(statistics)
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")  # the only theme with colors that leaves the terminal's own background
    figure.plot_size(max(40, width), 16)
    figure.title("Mean departure delay in minutes, by week")
    for origin, delays in lines.items():
        points = [(i, delay) for i, delay in enumerate(delays) if delay == delay]  # noqa: PLR0124 - not a number is unequal to itself
        signal = figure.signal([i for i, _ in points], [delay for _, delay in points], marker="braille")
        signal.lines()
        signal.label(origin)
        figure.draw(signal)
    step = max(1, len(weeks) // 6)
    figure.ruler("x").ticks(list(range(0, len(weeks), step)), [f"{week:%d %b}" for week in weeks[::step]])
    text = Text.from_ansi(str(figure.build()))
    figure.clear()
    return text


def checks_table(checks: Sequence[Check]) -> Table:
    """Return the checks, one line each."""
    table = Table(title="Checks", title_justify="left", title_style="bold", show_header=False)
    table.add_column(width=4)
    table.add_column()
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row("[green]ok[/]" if check.passed else "[bold red]FAIL[/]", check.name, Text(check.detail))
    return table


def show(console: Console, outcome: Outcome) -> None:
    """Print the whole outcome."""
    report, statistics = outcome.report, outcome.statistics
    if statistics.num_rows:
        console.print(results_table(statistics))
        console.print(terminal_plot(statistics, min(console.width, 100)))
    console.print(checks_table(outcome.checks))
    produce, table, restart = report["produce"], report["table"], report["restart"]
    console.print(
        f"[bold]{produce['messages_per_s']:,.0f} messages/s in[/]"
        f" ({produce['messages']:,} in {produce['seconds']:.1f} s, {produce['batches']:,} batches;"
        f" by then the query had taken {table['taken_when_sent']:,} and written {table['rows_when_sent']:,}),"
        f" [bold]{table['rows_per_s']:,.0f} rows/s out[/] ({table['rows']:,} in {table['seconds']:.1f} s, {table['batches']} batches)"
    )
    again = restart["repeated_batches"]
    console.print(
        f"The query was stopped at {restart['rows_when_stopped']:,} rows and went on from its checkpoint"
        + (f", repeating batch {', '.join(map(str, again))}, which it had not finished." if again else ".")
    )
    days = report["days"]
    again = days["repeated_batches"]
    console.print(
        f"{days['closed']:,} days of airports were closed behind the watermark in {days['seconds']:.1f} s, stopped after"
        f" {days['batches_when_stopped']} of {days['batches']} batches and gone on"
        + (f", repeating batch {', '.join(map(str, again))}" if again else "")
        + "; they are in days/ and in the topic delays-by-day."
    )
    console.print(
        f"Elapsed {report['elapsed_s']:.1f} s, of which {report['spark_start_s']:.1f} s until Spark was there"
        f" and {report['warm_up_s']:.1f} s to warm it up with {report['warm_up_flights']:,} flights of another topic."
    )
    console.print(
        f"Written to {report['output']}: delays.parquet, delays.png, flights/, days/, report.json", soft_wrap=True, highlight=False
    )
