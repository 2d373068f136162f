"""The job ``audit``: compare every file of a store with its log, with tasks on many machines."""

from sprocketmq.spark.jobs.audit.job import audit, check_request
from sprocketmq.spark.jobs.audit.report import AuditSummary, QueueAudit

__all__ = ["AuditSummary", "QueueAudit", "audit", "check_request"]
