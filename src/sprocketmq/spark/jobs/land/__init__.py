"""The job ``land``: write topics into a table, each message exactly once."""

from sprocketmq.spark.jobs.land.job import (
    FormatMissing,
    LandPlan,
    LandSummary,
    compact,
    land,
    landed,
    landed_files,
    plan_landing,
    read_table,
)

__all__ = ["FormatMissing", "LandPlan", "LandSummary", "compact", "land", "landed", "landed_files", "plan_landing", "read_table"]
