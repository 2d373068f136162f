"""Arguments and options that several commands have."""

from typing import Annotated

import typer

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[str, typer.Option(envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Nameservers, several joined by ';'.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
# The command parses its own arguments.
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
