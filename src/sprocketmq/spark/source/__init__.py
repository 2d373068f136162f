"""The source ``rocketmq``: options, planning on the driver, reading and decoding on the workers."""
