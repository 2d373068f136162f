"""Apache's ``broker.conf`` as a configuration file: each line becomes a setting of ours, or the file is refused with all its problems."""

import difflib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from sprocketmq.cli.apache_names import FIXED, NAMESRV_SETTINGS, REFUSED, SETTINGS, Setting
from sprocketmq.cli.properties import Property, parse_properties
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Credentials

# Apache's broker derives these from its root directory unless they are set; here they are always below it.
IN_ROOT = {
    "storePathCommitLog": "commitlog",
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
KV_CONFIG = "kvConfigPath"
HA_ADDRESS = "brokerIP2"
FLOW_CONTROL = "haFlowControlEnable"
FLOW_LIMIT = "maxHaTransferByteInSecond"
FLOW_LIMIT_DEFAULT = 100 << 20
# JSON with the name of a user and a secret, and the names of both in it. They are no settings of ours, as those hold no secrets.
SECRETS = {"initAuthenticationUser": ("username", "password"), "innerClientAuthenticationCredentials": ("accessKey", "secretKey")}
SPECIAL = (*IN_ROOT, KV_CONFIG, HA_ADDRESS, FLOW_CONTROL, *SECRETS)
# Apache's brokers listen for slaves at the port after their own.
DEFAULT_PORT = 10911


class Given(NamedTuple):
    """A value for a setting of ours, and the words that name its origin in errors."""

    setting: str
    value: Any
    source: str


def is_broker_conf(path: Path, text: str) -> bool:
    """Return whether a configuration file is one of Apache's rather than TOML.

    ``.toml`` is TOML. Anything else is Apache's if it has one of its names, or if it is no TOML and is called ``.conf`` or ``.properties``.
    """
    if path.suffix == ".toml":
        return False
    try:
        if any(is_known(each.key) for each in parse_properties(text)):
            return True
    except ConfigError:
        pass
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return path.suffix in (".conf", ".properties")
    return False


def read_broker_conf(text: str, source: str, *, for_namesrv: bool = False) -> list[Given]:
    """Return the settings of a file, with ``for_namesrv`` only the nameserver's. Raises ConfigError with all problems of the file."""
    try:
        properties = parse_properties(text)
    except ConfigError as e:
        raise ConfigError(f"{source}: {e}") from None
    given: dict[str, Given] = {}
    problems = list(_repeated(properties))
    values = {each.key: each.value for each in properties}
    for each in properties:
        try:
            one = _given(each, values, f"{source} line {each.line}", for_namesrv=for_namesrv)
        except ValueError as e:
            problems.append(f"line {each.line}: {e}")
            continue
        if one is not None:
            # Two intervals are one here: the shorter one satisfies both.
            given[one.setting] = min(given[one.setting], one, key=lambda o: o.value) if one.setting in given else one
    if "role" in given and "ha_port" not in given:
        port = given["port"].value if "port" in given else DEFAULT_PORT
        given["ha_port"] = given["role"]._replace(setting="ha_port", value=port + 1 if port else 0)
    if len(problems) == 1:
        raise ConfigError(f"{source} {problems[0]}")
    if problems:
        raise ConfigError("\n  ".join((f"{source}: {len(problems)} lines cannot be followed", *problems)))
    return list(given.values())


def is_known(key: str) -> bool:
    """Return whether ``key`` is the name of a setting of Apache's."""
    return key in SETTINGS or key in FIXED or key in REFUSED or key in SPECIAL


def read_assignment(key: str, text: str, source: str) -> Given | None:
    """Return the setting of one assignment outside of a file, None when it states a value that is fixed here. Raises ConfigError."""
    if key in SECRETS:
        raise ConfigError(
            f"{source}: {key} is a secret, and every user of the machine sees command lines: make the user with"
            " `sprocketmq user create NAME --admin --users-file FILE`, or use a configuration file"
        )
    try:
        return _given(Property(0, key, text), {key: text}, source, for_namesrv=False)
    except ValueError as e:
        raise ConfigError(f"{source}: {e}") from None


def _repeated(properties: Sequence[Property]) -> Iterator[str]:
    first: dict[str, Property] = {}
    for each in properties:
        before = first.setdefault(each.key, each)
        if before.value != each.value:
            yield f"line {each.line}: {each.key} was given another value in line {before.line}; keep one of them"


def _given(each: Property, values: dict[str, str], source: str, *, for_namesrv: bool) -> Given | None:
    """Return the setting of one line; None when it states a value that is fixed here. Raises ValueError."""
    key, text = each.key, each.value
    if key in SPECIAL:
        return _special(key, text, values, source, for_namesrv=for_namesrv)
    table: dict[str, Setting] = NAMESRV_SETTINGS if for_namesrv else SETTINGS
    if key == FLOW_LIMIT and values.get(FLOW_CONTROL, "").lower() != "true":
        raise ValueError(f"{key} takes effect with {FLOW_CONTROL} = true only")
    if (setting := table.get(key)) is not None:
        try:
            return Given(setting.name, setting.read(text), f"{source}, {key}")
        except ValueError as e:
            raise ValueError(f"{key} {e}, not {text!r}") from None
    if key in FIXED:
        value, reason = FIXED[key]
        if text.lower() != value.lower():
            raise ValueError(f"{key} can only be {value} here, not {text!r}: {reason}")
        return None
    if key in REFUSED:
        raise ValueError(f"{key} has no effect here: {REFUSED[key]}; leave it out")
    if for_namesrv and key in SETTINGS:
        raise ValueError(f"{key} is a setting of brokers; leave it out")
    raise ValueError(f"unknown key {key!r}; {closest(key) or 'it is not a setting of Apache RocketMQ 5.5.0'}")


def closest(key: str) -> str:
    """Return ``did you mean NAME?`` for a key that is spelled like one of Apache's, else ""."""
    known = {name.lower(): name for name in (*SETTINGS, *FIXED, *SPECIAL, *REFUSED)}
    alike = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {known[alike[0]]}?" if alike else ""


def _credentials(key: str, text: str) -> Credentials:
    """Return the user and the secret of a line. Raises ValueError, which never quotes it."""
    names = SECRETS[key]
    try:
        fields = msgspec.json.decode(text, type=dict[str, str])
        return Credentials(*(fields[name] for name in names))
    except (msgspec.MsgspecError, KeyError):
        raise ValueError(f'{key} must be JSON like {{"{names[0]}": "...", "{names[1]}": "..."}}') from None
    except ConfigError as e:
        raise ValueError(f"{key}: {e}") from None


def _special(key: str, text: str, values: dict[str, str], source: str, *, for_namesrv: bool) -> Given | None:
    """Return the setting of a line that depends on other lines, or on the layout of this broker's directory. Raises ValueError."""
    if key in SECRETS:
        if for_namesrv:
            raise ValueError(f"{key} is a setting of brokers; leave it out")
        return Given(key, _credentials(key, text), f"{source}, {key}")
    if key == HA_ADDRESS:
        if text != values.get("brokerIP1"):
            raise ValueError(f"{key} can only be the address of brokerIP1: replicas and clients use the same one")
        return None
    if key == FLOW_CONTROL:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{key} must be true or false, not {text!r}")
        unlimited = text.lower() == "false" or FLOW_LIMIT in values
        return None if unlimited else Given("ha_max_bytes_per_s", FLOW_LIMIT_DEFAULT, f"{source}, {key}")
    path = PurePosixPath(text)
    if key == KV_CONFIG:
        if not for_namesrv:
            raise ValueError(f"{key} is a setting of nameservers; leave it out")
        if path.parts[-2:] != ("namesrv", "kvConfig.json"):
            raise ValueError(f"{key} must end with namesrv/kvConfig.json, not {text!r}: the directory above is the store")
        return Given("store", str(path.parent.parent), f"{source}, {key}")
    name = IN_ROOT[key]
    root = values.get("storePathRootDir")
    if root is None or path != PurePosixPath(root, name):
        where = f"{root.rstrip('/')}/{name}" if root else f"storePathRootDir/{name}"
        raise ValueError(f"{key} can only be {where}: the files of a store are in one directory")
    return None
