"""``sprocketmq cluster config``: settings of running brokers and nameservers."""

from collections.abc import Sequence

from sprocketmq import sync
from sprocketmq.cli.output import clean, print_json, print_table
from sprocketmq.cli.target import Target
from sprocketmq.errors import ConfigError
from sprocketmq.net.address import parse_addresses

NAMESERVERS = "namesrv"


def get(target: Target, where: str, keys: Sequence[str], *, as_json: bool) -> None:
    """Print the settings of each server that ``where`` names, or ``keys`` of them. Raises ConfigError for a key that none has."""
    with sync.AdminClient(**target.options) as admin:
        found = {address: _config(admin, where, address) for address in addresses(admin, target, where)}
    for key in keys:
        if not any(key in settings for settings in found.values()):
            raise ConfigError(f"{where} has no setting {key!r}: `sprocketmq cluster config get {where}` shows all")
    chosen = {address: {key: value for key, value in settings.items() if not keys or key in keys} for address, settings in found.items()}
    if as_json:
        print_json(chosen)
        return
    rows = [(address, clean(key), clean(value)) for address, settings in chosen.items() for key, value in settings.items()]
    print_table(("address", "setting", "value"), rows)


def change(target: Target, where: str, assignments: Sequence[str], *, as_json: bool) -> None:
    """Change settings of each server that ``where`` names, and print the addresses."""
    changes = dict(_assignment(text) for text in assignments)
    with sync.AdminClient(**target.options) as admin:
        servers = addresses(admin, target, where)
        for address in servers:
            if where == NAMESERVERS:
                admin.update_namesrv_config(changes, address=address)
            else:
                admin.update_broker_config(address, changes)
            if not as_json:
                print(f"{address}: {', '.join(f'{clean(key)}={clean(value)}' for key, value in changes.items())}")
    if as_json:
        print_json(dict.fromkeys(servers, changes))


def addresses(admin: sync.AdminClient, target: Target, where: str) -> list[str]:
    """Return the addresses of the servers that ``where`` names. Raises ConfigError when there are none."""
    if where == NAMESERVERS:
        return list(parse_addresses(target.namesrv))
    if ":" in where:
        return list(parse_addresses(where))
    brokers = admin.cluster().broker_addr_table
    if where not in brokers:
        raise ConfigError(f"no broker {where!r} is registered (brokers: {', '.join(sorted(brokers)) or 'none'})")
    return list(brokers[where].broker_addrs.values())


def _config(admin: sync.AdminClient, where: str, address: str) -> dict[str, str]:
    return admin.namesrv_config(address) if where == NAMESERVERS else admin.broker_config(address)


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"write KEY=VALUE, not {text!r}")
    return key.strip(), value.strip()
