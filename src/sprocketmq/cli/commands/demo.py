"""``sprocketmq demo``."""

import typer


def demo(context: typer.Context) -> None:
    """Run the demo: 336,776 flights through a broker and Spark into a table."""
    from sprocketmq.cli import demo

    raise typer.Exit(demo.run(context.args))
