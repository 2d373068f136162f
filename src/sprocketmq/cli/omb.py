"""``sprocketmq bench omb``: one workload over one driver, its result file and picture, and tables of several results."""

import asyncio
import importlib.util
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sprocketmq.cli.errors import EXIT_FAILURE, EXIT_OK, EXIT_SIGNAL, fail
from sprocketmq.cli.omb_board import Board
from sprocketmq.cli.output import print_json, print_table
from sprocketmq.cli.stopping import on_stop_signals
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError, NotOnWindows
from sprocketmq.net.loops import new_event_loop

if TYPE_CHECKING:
    from sprocketmq.omb.result import Result
    from sprocketmq.omb.run import Settings
    from sprocketmq.omb.workload import Workload

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)?")
_UNITS = {None: 1, "s": 1, "m": 60, "h": 3600}
# The packages of the extra, and the modules that they install.
_PACKAGES = {"hdrhistogram": "hdrh", "pyyaml": "yaml"}


@dataclass(frozen=True)
class OmbOptions:
    """What to run. Without ``target`` the driver ``sprocketmq`` starts a broker. Durations are None unless they replace the workload's."""

    workload: str
    target: Target | None
    driver: str
    driver_config: Path | None
    options: Sequence[str]
    duration: str | None
    warm_up: str | None
    producer_workers: int
    consumer_workers: int
    server_pids: Sequence[int]
    output: Path | None


def seconds_of(text: str, option: str) -> float:
    """Return the seconds in ``30s``, ``5m``, ``1.5h`` or a plain number. Raises ConfigError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option} {text!r} is not a duration: write it like 30s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2]]


def check_packages() -> None:
    """Raise ConfigError when a package of the extra is missing."""
    missing = [package for package, module in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"bench omb needs {' and '.join(missing)}: pip install 'sprocketmq[bench]'")


def show_list(*, as_json: bool) -> int:
    """Print the workloads that come with the package."""
    check_packages()
    from sprocketmq.omb import workload

    found = [(name, workload.load(name)[1].name) for name in workload.packaged()]
    if as_json:
        print_json([{"workload": name, "title": title} for name, title in found])
    else:
        print_table(("workload", "what it is"), found)
    return EXIT_OK


def compare(paths: Sequence[str], plot: Path | None, *, as_json: bool) -> int:
    """Print the results in ``paths`` beside each other, and draw them into ``plot``."""
    from sprocketmq.omb import comparison

    if not paths:
        raise ConfigError("--compare needs result files: sprocketmq bench omb --compare A.json B.json")
    _check_plot(plot)
    named = [(Path(path).stem, comparison.read(Path(path))) for path in paths]
    rows = comparison.table(named)
    if as_json:
        print_json([dict(zip(comparison.KEYS, row, strict=True)) for row in rows])
    else:
        print_table(comparison.COLUMNS, rows)
    if plot is not None:
        _draw(plot, named)
        if not as_json:
            print(f"picture written to {plot}")
    return EXIT_OK


def run(options: OmbOptions, plot: Path | None, *, as_json: bool) -> int:
    """Run the workload, print its figures, write the result and the picture.

    Returns 1 when sends failed, 128 plus the number of a signal that ended it; what was measured until then is written.
    """
    if sys.platform == "win32":
        raise NotOnWindows
    check_packages()
    _check_plot(plot)
    from sprocketmq.omb import comparison, servers
    from sprocketmq.omb.run import Settings
    from sprocketmq.omb.workload import load

    name, workload = load(options.workload)
    workload = _with_durations(workload, options)
    config = _config(options)
    output = options.output or Path(f"{name}-{options.driver}-{time.strftime('%Y-%m-%d-%H-%M-%S')}.json")
    if not output.parent.is_dir():
        raise ConfigError(f"--output: there is no directory {output.parent}: make it first")
    with ExitStack() as stack:
        pids = tuple(options.server_pids)
        if options.driver == "sprocketmq" and "namesrv" not in config:
            own = stack.enter_context(servers.own_broker(workload))
            config, pids = {**config, **own.config}, (*pids, *own.pids)
        settings = Settings(
            driver=options.driver,
            config=config,
            producer_workers=options.producer_workers,
            consumer_workers=options.consumer_workers,
            server_pids=pids,
            directory=Path(options.workload).parent,
        )
        board = stack.enter_context(Board(workload.name or name))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            result, stopped_by = runner.run(_run(workload, settings, board))
    if result is None:
        fail("stopped before anything was measured: there is no result")
    else:
        output.write_text(_json(result), encoding="utf-8")
        picture = plot or output.with_suffix(".svg")
        _draw(picture, [(f"{name}, {result['driver']}", result)])
        if as_json:
            print_json(result)
        else:
            print_table(comparison.COLUMNS, comparison.table([(output.stem, result)]))
            print(f"result written to {output}, picture to {picture}")
    if stopped_by is not None:
        fail(f"stopped by {stopped_by.name}")
        return EXIT_SIGNAL + stopped_by
    errors = result["sprocketmq"]["sendErrors"] if result is not None else 0
    if errors and result is not None:
        fail(f"{errors:,} sends failed, the first: {result['sprocketmq']['firstError']}")
        return EXIT_FAILURE
    return EXIT_OK


async def _run(workload: "Workload", settings: "Settings", board: Board) -> "tuple[Result | None, signal.Signals | None]":
    from sprocketmq.omb.run import Run

    run = Run(workload, settings, board.show)
    came: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        came.append(number)
        run.stop()

    with on_stop_signals(stop):
        result = await run.run()
    return result, came[0] if came else None


def _with_durations(workload: "Workload", options: OmbOptions) -> "Workload":
    import msgspec

    from sprocketmq.omb.workload import check

    changes = {}
    if options.duration is not None:
        changes["test_duration_minutes"] = seconds_of(options.duration, "--duration") / 60
    if options.warm_up is not None:
        changes["warmup_duration_minutes"] = seconds_of(options.warm_up, "--warm-up") / 60
    if not changes:
        return workload
    changed = msgspec.structs.replace(workload, **changes)
    check(changed, "the command line")
    return changed


def _config(options: OmbOptions) -> dict[str, object]:
    """Return the settings of the driver: those of its file, then those of the command line."""
    config: dict[str, object] = dict(_driver_file(options.driver_config)) if options.driver_config is not None else {}
    for option in options.options:
        key, separator, value = option.partition("=")
        if not key or not separator:
            raise ConfigError(f"--option {option!r} must be KEY=VALUE")
        config[key] = value
    target = options.target
    if target is None:
        return config
    if options.driver not in ("sprocketmq", "apache"):
        raise ConfigError(f"--namesrv and the options of logins are RocketMQ's: give driver {options.driver} its address by --option")
    config["namesrv"] = target.namesrv
    login = {"secure": target.secure, "accessKeyFile": target.access_key_file, "tls": target.tls, "tlsCa": target.tls_ca}
    return config | {key: str(value) if isinstance(value, Path) else value for key, value in login.items() if value is not None}


def _driver_file(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"--driver-config {path}: {e.strerror}: give the path of a file with the driver's settings") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        raise ConfigError(f"--driver-config {path} is not YAML: {' '.join(str(e).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--driver-config {path} must be lines such as 'batchQueues: true'")
    return {str(key): value for key, value in found.items()}


def _check_plot(plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigError(f"--plot writes SVG, which every browser shows: name the file {plot.with_suffix('.svg')}")


def _draw(path: Path, named: "Sequence[tuple[str, Result]]") -> None:
    from sprocketmq.omb.charts import draw

    path.write_text(draw(named), encoding="utf-8")


def _json(result: "Result") -> str:
    import json

    return json.dumps(result, indent=2) + "\n"
