"""PART, which the distribution sprocketmq-client does not have: importing it raises PartNotInstalled."""

from sprocketmq.errors import PartNotInstalled

raise PartNotInstalled(__name__, "pip uninstall -y sprocketmq-client && pip install sprocketmq")
