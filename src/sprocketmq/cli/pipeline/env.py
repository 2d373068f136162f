"""``sprocketmq pipeline env``: what Spark's own commands need to run here."""

import shlex

from sprocketmq.cli.pipeline import Json


def command(json: Json = False) -> None:
    """Print the environment for spark-submit, spark-pipelines and pyspark: eval "$(sprocketmq pipeline env)".

    Java (one that is installed, or the wheel's), this Python for the workers, and Spark's commands on the search path.
    """
    from sprocketmq.cli.output import print_json
    from sprocketmq.spark.sessions.session import launch_environment

    variables = launch_environment()
    if json:
        print_json(variables)
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")
