"""Every command of Apache's admin tool: with which arguments it is run here, and what it prints then."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One run of a command: its arguments, and a pattern of what it prints.

    Words in braces are facts of the cluster. ``lacks`` is what our servers do not have, where the command is refused for that; its pattern
    is then that of the refusal.
    """

    command: str
    arguments: str
    prints: str
    lacks: str = ""

    def run(self, tool: Callable[..., str], facts: dict[str, str], arguments: str = "") -> tuple[bool, str]:
        """Run it with ``tool``, and return whether that was as expected, and what it printed. ``arguments`` replace its own.

        The id of the message that ``sendMessage`` sends becomes the fact ``msg_id``.
        """
        words = [word.format(**facts) for word in (arguments or self.arguments).split()]
        printed = tool(self.command, "-n", facts["namesrv"], *words)
        if self.command == "sendMessage" and (sent := re.search(r"\b[0-9A-F]{32,}\b", printed)):
            facts["msg_id"] = sent[0]
        for left in re.findall(r"(?:is written to file|Message Body Path:) +(/\S+)", printed):
            Path(left).unlink(missing_ok=True)  # under the system's temporary directory, whatever the tool is told
        pattern = self.prints.format(**{name: re.escape(value) for name, value in facts.items()}) if "{" in self.prints else self.prints
        return re.search(pattern, printed) is not None and (bool(self.lacks) or re.search(FAILED, printed) is None), printed


def refused(command: str, arguments: str, lacks: str, prints: str = r"CODE: 3 +DESC: +request type \d+ not supported") -> Case:
    """Return the run of a command that needs what our servers do not have."""
    return Case(command, arguments, prints, lacks)


# What a command prints that did not do what it was asked.
FAILED = r"command ?failed|Exception\b|CODE: \d"
# These run until they are stopped, and are left out.
ENDLESS = ("startMonitoring", "clusterRT")

_CONTROLLER = "controllers"
_CONTAINER = "broker containers"
_LITE = "lite topics"
_COLD = "flow control of cold data"
_ROCKSDB = "RocksDB"

# In the order of the run: the first ones make what the others look at.
CASES = (
    Case("updateTopic", "-c {cluster} -t Made -r 2 -w 2", "create topic to .* success"),
    Case("updateTopicPerm", "-c {cluster} -t Made -p 6", "update topic perm from 6 to 6 in {broker} success"),
    Case("updateTopicList", "-b {broker} -f {topics}", "submit batch of topic config to .* success"),
    Case("updateSubGroup", "-c {cluster} -g made_group", "create subscription group to .* success"),
    Case("updateSubGroupList", "-b {broker} -f {groups}", "submit batch of group config to .* success"),
    Case("sendMessage", "-t Made -p body -k key1 -c TagA -m true", "SEND_OK"),
    Case("sendMsgStatus", "-b {broker_name} -c 3", "sendStatus=SEND_OK"),
    Case("checkMsgSendRT", "-t Made -a 3", "Avg RT"),
    Case("clusterList", "", "{broker}"),
    Case("topicList", "", "Made"),
    Case("topicRoute", "-t Made", "readQueueNums"),
    Case("topicStatus", "-t Made", "{broker_name}"),
    Case("topicClusterList", "-t Made", "{cluster}"),
    Case("statsAll", "", "Made"),
    Case("allocateMQ", "-t Made -i 10.0.0.1,10.0.0.2", "10.0.0.2"),
    Case("brokerStatus", "-b {broker}", "putMessageDistributeTime"),
    Case("getBrokerConfig", "-b {broker}", "brokerName"),
    Case("updateBrokerConfig", "-b {broker} -k slaveReadEnable -v false", "update broker config success"),
    Case("getNamesrvConfig", "", "listenPort"),
    Case("updateNamesrvConfig", "-k max_connections -v 5000", "update name server config success"),
    Case("updateKvConfig", "-s space -k key -v value", "create or update kv config to namespace success"),
    Case("deleteKvConfig", "-s space -k key", "delete kv config from namespace success"),
    Case("updateOrderConf", "-t Made -m put -v {broker_name}:2", "update orderConf success"),
    Case("wipeWritePerm", "-b {broker_name}", "wipe write perm of broker"),
    Case("addWritePerm", "-b {broker_name}", "add write perm of broker"),
    Case("queryMsgByKey", "-t Made -k key1", "{msg_id}"),
    Case("queryMsgByUniqueKey", "-t Made -i {msg_id}", "key1"),
    Case("queryMsgById", "-t Made -i {msg_id}", "key1"),
    Case("queryMsgByOffset", "-t Read -b {broker_name} -i 0 -o 0", "OffsetID"),
    Case("queryCq", "-t Read -q 0 -i 0 -b {broker}", "physicOffset=0"),
    Case("printMsg", "-t Read -d true", "MSGID"),
    Case("printMsgByQueue", "-t Read -a {broker_name} -i 0 -d true -p true", "MSGID"),
    Case("consumeMessage", "-t Read -c 1", "Consume ok"),
    Case("consumerProgress", "-g reading", "Read"),
    Case("consumerConnection", "-g reading", "JAVA"),
    Case("consumerStatus", "-g reading", "Rebalance OK"),
    Case("producerConnection", "-g interop_java_producer -t Read", "JAVA"),
    Case("producer", "-b {broker}", "interop_java_producer"),
    Case("brokerConsumeStats", "-b {broker}", r"Diff Total: \d"),
    Case("getConsumerConfig", "-g reading", "reading"),
    Case("resetOffsetByTime", "-g reading -t Read -s now", "{broker_name}"),
    Case("skipAccumulatedMessage", "-g reading -t Read", "{broker_name}"),
    Case("cloneGroupOffset", "-s reading -d made_group -t Read -o true", "clone group offset success"),
    Case("cleanExpiredCQ", "-c {cluster}", "success"),
    Case("cleanUnusedTopic", "-c {cluster}", "success"),
    Case("deleteExpiredCommitLog", "-c {cluster}", "success"),
    Case("exportMetadata", "-c {cluster} -f {home}", "export .* success"),
    Case("exportConfigs", "-c {cluster} -f {home}", "export .* success"),
    Case("exportMetrics", "-c {cluster} -f {home}", "export .* success"),
    Case("haStatus", "-b {broker}", "MasterCommitLogMaxOffset"),
    Case("getBrokerEpoch", "-b {broker_name}", "EpochEntry"),
    Case("createUser", "-b {broker} -u shop -p a-secret-of-the-shop-12", "create user .*success"),
    Case("updateUser", "-b {broker} -u shop -p another-secret-of-the-shop", "update user .*success"),
    Case("getUser", "-b {broker} -u shop", "shop"),
    Case("listUser", "-b {broker}", "shop"),
    Case("copyUser", "-f {broker} -t {broker} -u shop", "copy user .*success"),
    Case("createAcl", "-b {broker} -s User:shop -r Topic:Made -a Pub -d Allow", "create acl .*success"),
    Case("updateAcl", "-b {broker} -s User:shop -r Topic:Made -a Sub -d Allow", "update acl .*success"),
    Case("getAcl", "-b {broker} -s User:shop", "Topic:Made"),
    Case("listAcl", "-b {broker}", "Topic:Made"),
    Case("copyAcl", "-f {broker} -t {broker} -s User:shop", "copy acl .*success"),
    Case("deleteAcl", "-b {broker} -s User:shop", "delete acl .*success"),
    Case("deleteUser", "-b {broker} -u shop", "delete user .*success"),
    Case("queryMsgTraceById", "-i {msg_id}", "success"),
    Case("setConsumeMode", "-c {cluster} -t Read -g reading -m PULL", "set consume mode to .*success"),
    Case("deleteSubGroup", "-b {broker} -g made_group", "delete subscription group .*success"),
    Case("deleteTopic", "-c {cluster} -t Made", "delete topic .*success"),
    refused("updateStaticTopic", "-c {cluster} -t Static -qn 4", "static topics"),
    refused("remappingStaticTopic", "-c {cluster} -t Static", "static topics", "No topic route to do the remapping"),
    refused("addBroker", "-c {broker} -b /tmp/broker.conf", _CONTAINER),
    refused("removeBroker", "-c {broker} -b {cluster}:{broker_name}:0", _CONTAINER),
    refused("resetMasterFlushOffset", "-b {broker} -o 0", "acting masters"),
    refused("exportPopRecord", "-b {broker} -d true", "records of pops in RocksDB"),
    refused("getSyncStateSet", "-a {namesrv} -b {broker_name}", _CONTROLLER),
    refused("getControllerMetaData", "-a {namesrv}", _CONTROLLER),
    refused("getControllerConfig", "-a {namesrv}", _CONTROLLER),
    refused("updateControllerConfig", "-a {namesrv} -k a -v b", _CONTROLLER),
    refused("electMaster", "-a {namesrv} -b 0 -bn {broker_name} -c {cluster}", f"{_CONTROLLER}: `sprocketmq failover` promotes a slave"),
    refused("cleanBrokerMetadata", "-a {namesrv} -b 1 -bn {broker_name} -c {cluster}", _CONTROLLER),
    refused("dumpCompactionLog", "-f {home}/none", "compaction topics", "not exist"),
    refused("getColdDataFlowCtrInfo", "-b {broker}", _COLD),
    refused("updateColdDataFlowCtrGroupConfig", "-b {broker} -g reading -v 100", _COLD),
    refused("removeColdDataFlowCtrGroupConfig", "-b {broker} -g reading", _COLD),
    refused("setCommitLogReadAheadMode", "-b {broker} -m 0", _COLD),
    refused("rocksDBConfigToJson", "-c {cluster} -t topics", _ROCKSDB, "not supported|Invalid args"),
    refused("checkRocksdbCqWriteProgress", "-c {cluster}", _ROCKSDB),
    refused("exportMetadataInRocksDB", "-p {home} -t topics", _ROCKSDB, "RocksDB load error"),
    refused("switchTimerEngine", "-b {broker} -e F", "a second timer engine"),
    refused("getBrokerLiteInfo", "-b {broker}", _LITE),
    refused("getParentTopicInfo", "-p Read", _LITE, r"\[{broker_name}\] error"),
    refused("getLiteTopicInfo", "-p Read -l lite", _LITE, r"\[{broker_name}\] error"),
    refused("getLiteClientInfo", "-p Read -g reading -c client", _LITE, r"\[{broker_name}\] error"),
    refused("getLiteGroupInfo", "-p Read -g reading", _LITE, r"\[{broker_name}\] error"),
    refused("triggerLiteDispatch", "-p Read -g reading", _LITE, r"{broker_name} +error"),
)
