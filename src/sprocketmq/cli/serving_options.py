"""Command lines and settings of ``serve``, ``namesrv`` and ``broker``."""

import argparse
import os
import socket
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from sprocketmq.cli.argument_parser import ArgumentParser
from sprocketmq.cli.config import KEYS, LOOPBACK_HOST, Settings, data_directory
from sprocketmq.cli.serving_security import security_of
from sprocketmq.cli.serving_verbs import DESCRIPTIONS
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import is_loopback, parse_address, parse_addresses
from sprocketmq.protocol.settings import SETTING_VARIABLE

if TYPE_CHECKING:
    from sprocketmq.broker.config import BrokerConfig
    from sprocketmq.cli.logs import LogOptions
    from sprocketmq.storage.config import ConfigFile

_READY = {
    "serve": "ready namesrv=HOST:PORT broker=HOST:PORT store=DIR",
    "namesrv": "ready namesrv=HOST:PORT",
    "broker": "ready broker=HOST:PORT store=DIR",
}


DEFAULT_NAMESRV = "127.0.0.1:9876"
LOG_SETTINGS = ("log_level", "log_format", "log_file", "log_max_bytes", "log_backups")
SECRET_VARIABLE = "SPROCKETMQ_HA_SECRET"  # noqa: S105 - the name of an environment variable
ROLE_HELP = {
    "serve": "ASYNC_MASTER (default), or SYNC_MASTER: sends are answered when slaves have them",
    "broker": "ASYNC_MASTER (default), SYNC_MASTER (sends are answered when slaves have them) or SLAVE",
}


def _default_store(name: str) -> str:
    try:
        return f"default {data_directory()}/{name}"
    except ConfigError:
        return "this user has no home directory, which the default is in"


def parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb. Options left out are None, so that the configuration file counts."""
    p = ArgumentParser(
        verb,
        settings=KEYS,
        description=f"{DESCRIPTIONS[verb]} Prints one line `{_READY[verb]}` when it is ready. "
        "SIGTERM and SIGINT stop it cleanly (exit code 0).",
        epilog="A port of 0 means any free port. The command line overrides variables of the environment"
        f" ({SETTING_VARIABLE}KEY=VALUE), and these the configuration file.",
    )
    p.add_argument("--host", help=f"address to listen on (default {LOOPBACK_HOST})")
    if verb == "serve":
        p.add_argument("--namesrv-port", type=port_number, metavar="PORT", help="port of the nameserver (default 9876)")
        p.add_argument("--brokers", type=_count, metavar="N", default=1, help="how many masters; several run in supervised child processes")
        p.add_argument("--replicas", type=int, metavar="N", default=0, help="how many slaves each master has (default 0)")
    if verb == "broker":
        p.add_argument("--take-over", action="store_true", help="replace a live broker of the same name, which gets no more traffic then")
        p.add_argument("--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="nameservers to register at (default: NAMESRV_ADDR)")
    default_port = 9876 if verb == "namesrv" else 10911
    p.add_argument(
        "--port", type=port_number, help=f"port of the {'nameserver' if verb == 'namesrv' else 'broker'} (default {default_port})"
    )
    kept, name = ("key-value configuration", "namesrv-PORT") if verb == "namesrv" else ("messages", "BROKER_NAME")
    p.add_argument("--store", metavar="DIR", help=f"directory to keep {kept} in ({_default_store(name)})")
    if verb != "namesrv":
        p.add_argument("--name", metavar="BROKER_NAME", help="name of the broker (default broker-a)")
        p.add_argument("--cluster", metavar="CLUSTER_NAME", help="name of the cluster (default DefaultCluster)")
        p.add_argument(
            "--advertise",
            metavar="HOST",
            help="host that clients connect to (default: --host, or the first real address for a wildcard)",
        )
    if verb != "namesrv":
        p.add_argument("--role", metavar="ROLE", help=ROLE_HELP[verb])
        p.add_argument("--ha-port", type=port_number, metavar="PORT", help="port for slaves to follow at (default: none; 0: any free one)")
        p.add_argument("--in-sync-replicas", type=_count, metavar="N", help="copies a SYNC_MASTER waits for, with its own (default 2)")
        p.add_argument("--ha-secret-file", metavar="FILE", help=f"file with the secret of master and slaves (or ${SECRET_VARIABLE})")
    if verb == "broker":
        p.add_argument("--broker-id", type=int, metavar="ID", help="0 for a master (default), from 1 for a slave")
        p.add_argument("--slave-read-enable", action=argparse.BooleanOptionalAction, help="whether a slave answers pulls (default: yes)")
    if verb != "namesrv":
        p.add_argument(
            "--metrics", type=port_number, metavar="PORT", help="let Prometheus scrape http://127.0.0.1:PORT/metrics (usually 5557)"
        )
    add_log_options(p)
    if verb == "serve":
        p.add_argument("--dashboard", metavar="[HOST:]PORT", help="show the cluster in the browser at this port, from a process of its own")
        p.add_argument("--grpc", metavar="[HOST:]PORT", help="let gRPC clients in at this port (usually 8081), from a process of its own")
    p.add_argument("--config", metavar="FILE", type=Path, help="file with settings: TOML, or Apache's broker.conf")
    p.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting, named as in a configuration file")
    p.add_argument("--show-config", action="store_true", help="print all settings and where each comes from, as TOML, and exit")
    p.add_argument("--secure", metavar="DIR", type=Path, help="directory of `sprocketmq secure init`: TLS, logins and access control")
    p.add_argument("--insecure", action="store_true", help="allow a --host that other machines can reach without TLS and logins")
    p.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends, for parent processes")
    return p


def add_cluster_options(p: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster a process serves, and how it logs in there."""
    namesrv = os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    p.add_argument("--namesrv", metavar="HOST:PORT", default=namesrv, help=f"nameservers of the cluster, joined by ';' (default {namesrv})")
    p.add_argument("--secure", metavar="DIR", type=Path, help="credentials and trusted certificate: users have to log in then")
    p.add_argument("--access-key-file", metavar="FILE", type=Path, help="credentials as JSON, or Apache's tools.yml")
    p.add_argument("--tls", action=argparse.BooleanOptionalAction, help="encrypt connections to the cluster")
    p.add_argument("--tls-ca", metavar="FILE", type=Path, help="trust servers with certificates of this authority; implies --tls")


def add_log_options(p: argparse.ArgumentParser) -> None:
    """Add the options that say what is logged, and where to."""
    p.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (default: warning; info with --log-file)")
    p.add_argument("--log-format", metavar="FORMAT", help="text (default) or json: one object a line")
    p.add_argument("--log-file", metavar="PATH", help="file for log lines instead of standard error; SIGHUP opens it again")
    p.add_argument("--log-max-bytes", type=int, metavar="N", help="size at which the file is rotated (default 64 MiB; 0: never)")
    p.add_argument("--log-backups", type=int, metavar="N", help="rotated files that are kept (default 5; 0: the file is not rotated)")


def log_options(settings: Settings, process: str = "") -> "LogOptions":
    """Return where log lines go. ``process`` is named in each line."""
    from sprocketmq.cli.logs import LogOptions

    file = Path(settings.log_file).expanduser().absolute() if settings.log_file else None
    level = "info" if file is not None and "log_level" not in settings.explicit else settings.log_level
    return LogOptions(level, settings.log_format, file, settings.log_max_bytes, settings.log_backups, process)


def port_number(text: str) -> int:
    """Return the port in a text. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 (any free port) to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of brokers: write 1 or more")
    return int(text)


def read_settings(verb: str, options: argparse.Namespace) -> Settings:
    """Return the settings of configuration file and command line together. Raises ConfigError."""
    settings = Settings()
    if verb == "broker":
        settings.namesrv = os.environ.get("NAMESRV_ADDR", "")
        settings.sources["namesrv"] = "NAMESRV_ADDR"
    if options.secure is not None:
        settings.put_secure(options.secure)
    if options.config is not None:
        settings.put_file(options.config, for_namesrv=verb == "namesrv")
    settings.put_environment(os.environ)
    for assignment in options.set:
        settings.put_text(assignment, "--set")
    named = {"host": "host", "store": "store", "name": "broker_name", "cluster": "cluster_name", "advertise": "advertise"}
    named |= {name: name for name in ("role", "broker_id", "ha_port", "in_sync_replicas", "ha_secret_file", "slave_read_enable")}
    named |= {name: name for name in LOG_SETTINGS}
    named |= {"namesrv": "namesrv", "namesrv_port": "namesrv_port", "port": "namesrv_port" if verb == "namesrv" else "port"}
    for option, key in named.items():
        value = getattr(options, option, None)
        if value == "":
            raise ConfigError(f"--{option.replace('_', '-')} is empty: give it a value, or leave it out")
        if value is not None:
            settings.put(key, value, f"--{option.replace('_', '-')}")
    if (port := getattr(options, "metrics", None)) is not None:
        settings.put("metrics_exporter", "prom", "--metrics")
        settings.put("metrics_port", port, "--metrics")
    if verb == "serve":
        if "namesrv" in settings.explicit:
            _take_own_address(settings)
        if settings.role == "SLAVE" and not settings.namesrv:
            raise ConfigError("`sprocketmq serve` runs a nameserver of its own, where a SLAVE finds no master: run `sprocketmq broker`")
    if verb == "broker" and not settings.namesrv:
        raise ConfigError("no nameserver to register at: pass --namesrv HOST:PORT, or run `sprocketmq serve`, which includes one")
    return settings


def _take_own_address(settings: Settings) -> None:
    """Make the port of this machine's address in ``namesrv`` the port of the own nameserver; the broker registers at the others, too.

    Raises ConfigError when all the addresses are those of other machines.
    """
    addresses = parse_addresses(settings.namesrv)
    own = next((address for address in addresses if _is_here(parse_address(address)[0])), None)
    if own is None:
        raise ConfigError(
            f"`sprocketmq serve` runs a nameserver of its own, and {settings.namesrv} is none of this machine's addresses: run `sprocketmq"
            " broker` to register there only"
        )
    if "namesrv_port" not in settings.explicit:
        settings.namesrv_port = parse_address(own)[1]
    settings.namesrv = ";".join(address for address in addresses if address != own)


def _is_here(host: str) -> bool:
    """Return whether ``host`` is an address of this machine: only then a socket can be bound to it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def check_reach(settings: Settings, *, insecure: bool) -> None:
    """Raise ConfigError for a host that other machines can reach, unless TLS and logins are enforced, or ``insecure``."""
    if insecure and settings.secure is not None:
        raise ConfigError("--secure and --insecure exclude each other: with --secure any --host is allowed; leave --insecure out")
    host = settings.host
    if is_loopback(host) or insecure:
        return
    encrypted, logs_in = settings.tls_mode == "enforcing", settings.authentication_enabled
    if encrypted and logs_in:
        return
    if encrypted:
        problem = "nobody has to log in (authentication_enabled is false): anyone who can connect can read, write and delete every message"
    elif logs_in:
        problem = f"connections need not be encrypted (tls_mode is {settings.tls_mode}): whoever reads a request can send it again"
    else:
        problem = "there is neither encryption nor login: anyone who can connect can read, write and delete every message"
    raise ConfigError(
        f"--host {host} lets other machines in, and {problem}. Make a directory with `sprocketmq secure init DIR` and add --secure DIR,"
        " or add --insecure if only machines you trust can reach it"
    )


def broker_config(settings: Settings) -> "BrokerConfig":
    """Return the settings of one broker. Raises ConfigError for values that cannot work."""
    from sprocketmq.broker.config import BrokerConfig
    from sprocketmq.broker.replication.roles import Role
    from sprocketmq.storage.config import StoreConfig

    if settings.role not in tuple(Role):
        raise ConfigError(f"role must be one of {', '.join(Role)}, not {settings.role!r}")
    said = vars(settings)
    own = {"root", "store", "advertise", "namesrv", "role", "ha_secret", "ha_master_address"}
    security = security_of(settings)
    store = {f.name: said[f.name] for f in fields(StoreConfig) if f.name in said and f.name not in own}
    broker = {f.name: said[f.name] for f in fields(BrokerConfig) if f.name in said and f.name not in own}
    return BrokerConfig(
        store=StoreConfig(root=settings.store_root, **store),
        advertise=settings.advertise or None,
        namesrv=parse_addresses(settings.namesrv) if settings.namesrv else (),
        role=Role(settings.role),
        ha_secret=_ha_secret(settings),
        ha_master_address=settings.ha_master_address or None,
        tls=security.tls,
        tls_client=security.tls_client,
        security=security.access,
        **broker,
    )


def _ha_secret(settings: Settings) -> str | None:
    """Return the secret of master and slaves, from its file or the environment. Raises ConfigError for a file without one."""
    if not settings.ha_secret_file:
        return os.environ.get(SECRET_VARIABLE) or None
    path = Path(settings.ha_secret_file).expanduser()
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"the secret of master and slaves cannot be read from {path}: {reason}") from None
    if not secret:
        raise ConfigError(f"{path} is empty: write the secret of master and slaves to it")
    return secret


def kv_file(settings: Settings, broker: "BrokerConfig | None") -> "ConfigFile | None":
    """Return the file of a nameserver's key-value configuration; None for a nameserver on any free port without --store."""
    from sprocketmq.storage.config import KV_CONFIG_FILE, ConfigFile

    if broker is not None:
        return ConfigFile(broker.store.root / KV_CONFIG_FILE)
    if settings.store:
        return ConfigFile(Path(settings.store).expanduser().absolute() / KV_CONFIG_FILE)
    return ConfigFile(data_directory() / f"namesrv-{settings.namesrv_port}" / KV_CONFIG_FILE) if settings.namesrv_port else None
