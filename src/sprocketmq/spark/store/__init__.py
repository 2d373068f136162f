"""The source ``rocketmq-store``: the files of a store read in splits, without a broker."""
