"""The job ``audit``: every file of a store compared with its log, by tasks on many machines."""

from sprocketmq.spark.jobs.audit.job import AuditSummary, QueueAudit, audit, check_request

__all__ = ["AuditSummary", "QueueAudit", "audit", "check_request"]
