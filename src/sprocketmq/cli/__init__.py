"""The ``sprocketmq`` command: one module per group of verbs, each imported when its verb is run."""
