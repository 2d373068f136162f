"""The commands that serve until they are stopped, with their descriptions. Nothing else: every start of ``sprocketmq`` imports this."""

DESCRIPTIONS = {
    "serve": "Run a nameserver and a broker in one process, or several brokers in processes of their own.",
    "namesrv": "Run a nameserver.",
    "broker": "Run a broker that registers at running nameservers.",
    "dashboard": "Show and administer a cluster in the browser.",
    "proxy": "Let RocketMQ's gRPC clients use a cluster.",
}
