"""``sprocketmq pipeline env``: the environment that Spark's own commands need on this machine."""

import shlex

from sprocketmq.cli.pipeline import Json


def command(json: Json = False) -> None:
    """Print the environment for spark-submit, spark-pipelines and pyspark: eval "$(sprocketmq pipeline env)".

    Sets Java (an installed one or that of the wheel), this Python for the workers, and a PATH with Spark's commands.
    """
    from sprocketmq.cli.output import print_json
    from sprocketmq.spark.sessions.session import launch_environment

    variables = launch_environment()
    if json:
        print_json(variables)
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
