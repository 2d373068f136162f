"""Refusals of expressions that the broker does not filter by."""

from sprocketmq.broker.filters.sql92 import Condition, compile_sql
from sprocketmq.broker.filters.tokens import ExpressionRefused
from sprocketmq.errors import FatalError
from sprocketmq.protocol.codes import ResponseCode

SQL92 = "SQL92"
TURNED_OFF = "The broker does not support consumer to filter message by SQL92"


class FilterRefused(FatalError):
    """An expression that is answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


def is_sql(expression_type: str | None) -> bool:
    """Return whether an expression is of another type than tags."""
    return expression_type not in (None, "", "TAG")


def condition_of(expression_type: str | None, expression: str | None, *, filters: bool) -> Condition | None:
    """Return the condition that an expression of a request stands for; None for tags.

    Raises FilterRefused for one that cannot be compiled, for another type, and for all of them where the broker does not filter by them
    (``filters``).
    """
    if not is_sql(expression_type):
        return None
    if not filters:
        raise FilterRefused(ResponseCode.SYSTEM_ERROR, TURNED_OFF)
    if expression_type != SQL92:
        remark = f"parse the consumer's subscription failed: there are expressions of type TAG and SQL92, not {expression_type!r}"
        raise FilterRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    try:
        return compile_sql(expression or "")
    except ExpressionRefused as e:
        raise FilterRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {e}") from None
