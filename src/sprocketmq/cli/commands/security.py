"""``sprocketmq secure``, ``user`` and ``acl``: their commands."""

from pathlib import Path
from typing import Annotated

import typer

from sprocketmq.cli.cluster_options import for_cluster
from sprocketmq.cli.commands.options import Json
from sprocketmq.cli.target import Target

secure_app = typer.Typer(
    name="secure", help="Make certificates, credentials and settings of a secured cluster.", no_args_is_help=True, rich_markup_mode=None
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="A host name or IP address that servers are reached at; may be repeated.")
]
Days = Annotated[int, typer.Option(metavar="N", help="How long the certificate of the servers is valid.")]


@secure_app.command("init")
def secure_init(directory: Directory, host: Hosts = None, days: Days = 825, json: Json = False) -> None:
    """Make a directory for --secure: a certificate authority, a server certificate, an administrator, and settings that use them."""
    from sprocketmq.cli import secure

    secure.init(directory, host or [], days, as_json=json)


@secure_app.command("renew")
def secure_renew(directory: Directory, host: Hosts = None, days: Days = 825, json: Json = False) -> None:
    """Make a new server certificate by the same authority, for the same hosts and --host. Running servers take it over."""
    from sprocketmq.cli import secure

    secure.renew(directory, host or [], days, as_json=json)


UsersFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Use this file of users instead of running brokers.")]
User = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the credentials to DIR/credentials.json, for --secure DIR.")]
Show = Annotated[bool, typer.Option("--show", help="Print the secret.")]
SecretFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Take the secret from this file instead of generating one.")]

user_app = typer.Typer(
    name="user", help="Create, list, change and delete the users of a secured cluster.", no_args_is_help=True, rich_markup_mode=None
)


@user_app.command("list")
@for_cluster
def user_list(target: Target, users_file: UsersFile = None, json: Json = False) -> None:
    """List users, and the brokers that know them."""
    from sprocketmq.cli import users

    raise typer.Exit(users.list_users(target, users_file, as_json=json))


@user_app.command("create")
@for_cluster
def user_create(
    target: Target,
    name: User,
    admin: Annotated[bool, typer.Option("--admin", help="A Super user, who may do everything.")] = False,
    out: Out = None,
    show: Show = False,
    secret_file: SecretFile = None,
    users_file: UsersFile = None,
    json: Json = False,
) -> None:
    """Create a user at every broker, with a generated secret. It may do nothing until `acl grant`, unless it is an --admin."""
    from sprocketmq.cli import users

    options = users.SecretOptions(out, secret_file, show)
    raise typer.Exit(users.create(target, name, options, users_file, admin=admin, as_json=json))


@user_app.command("update")
@for_cluster
def user_update(
    target: Target,
    name: User,
    new_secret: Annotated[bool, typer.Option("--new-secret", help="Give it another secret; the one before ends at once.")] = False,
    keep_previous: Annotated[bool, typer.Option("--keep-previous", help="With --new-secret: both are valid until the next one.")] = False,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="Whether it may do everything.")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Whether it may log in.")] = None,
    out: Out = None,
    show: Show = False,
    secret_file: SecretFile = None,
    users_file: UsersFile = None,
    json: Json = False,
) -> None:
    """Change a user at every broker."""
    from sprocketmq.cli import users

    change = users.UserChange(new_secret=new_secret, keep_previous=keep_previous, admin=admin, enabled=enable)
    options = users.SecretOptions(out, secret_file, show)
    raise typer.Exit(users.update(target, name, change, options, users_file, as_json=json))


@user_app.command("delete")
@for_cluster
def user_delete(target: Target, name: User, users_file: UsersFile = None, json: Json = False) -> None:
    """Delete a user with its rights at every broker."""
    from sprocketmq.cli import users

    raise typer.Exit(users.delete(target, name, users_file, as_json=json))


acl_app = typer.Typer(name="acl", help="List, grant and revoke what users may do.", no_args_is_help=True, rich_markup_mode=None)

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="A topic; 'a*' is every one that begins so, '*' all.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="NAME", help="A consumer group, in the same way.")]
Clusters = Annotated[list[str] | None, typer.Option("--cluster", metavar="NAME", help="A cluster: its settings, users and statistics.")]
Others = Annotated[list[str] | None, typer.Option("--resource", metavar="TYPE:NAME", help="The same in one word, such as 'Topic:a*'.")]


@acl_app.command("list")
@for_cluster
def acl_list(
    target: Target,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this user.", show_default=False)] = None,
    users_file: UsersFile = None,
    json: Json = False,
) -> None:
    """List what users may do."""
    from sprocketmq.cli import acl

    raise typer.Exit(acl.list_rights(target, name, users_file, as_json=json))


@acl_app.command("grant")
@for_cluster
def acl_grant(
    target: Target,
    name: User,
    actions: Annotated[str, typer.Option(metavar="A,B", help="Pub, Sub, Create, Update, Delete, Get, List or All.")],
    topic: Topics = None,
    group: Groups = None,
    cluster: Clusters = None,
    resource: Others = None,
    source: Annotated[
        list[str] | None, typer.Option("--from", metavar="ADDRESS", help="Only from this IP address or network; may be repeated.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid instead of allowing.")] = False,
    users_file: UsersFile = None,
    json: Json = False,
) -> None:
    """Allow a user something at every broker, or forbid it. Of several rules, that of the most specific resource decides."""
    from sprocketmq.cli import acl

    resources = acl.Resources(topic or (), group or (), cluster or (), resource or ())
    raise typer.Exit(acl.grant(target, name, resources, actions, source or (), users_file, deny=deny, as_json=json))


@acl_app.command("revoke")
@for_cluster
def acl_revoke(
    target: Target,
    name: User,
    topic: Topics = None,
    group: Groups = None,
    cluster: Clusters = None,
    resource: Others = None,
    everything: Annotated[bool, typer.Option("--all", help="All rights of the user.")] = False,
    users_file: UsersFile = None,
    json: Json = False,
) -> None:
    """Remove rules of a user at every broker, named by the same resource as `acl list` shows."""
    from sprocketmq.cli import acl

    resources = acl.Resources(topic or (), group or (), cluster or (), resource or ())
    raise typer.Exit(acl.revoke(target, name, resources, users_file, everything=everything, as_json=json))
