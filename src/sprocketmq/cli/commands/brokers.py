"""``sprocketmq cluster``: its command."""

from sprocketmq.cli.commands.options import DEFAULT_NAMESRV, Json, Namesrv


def cluster(namesrv: Namesrv = DEFAULT_NAMESRV, json: Json = False) -> None:
    """Show all brokers: role, address, version, and how far slaves are behind their masters."""
    from sprocketmq.cli import cluster as it

    it.show(namesrv, as_json=json)
