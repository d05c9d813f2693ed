package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.admin.TopicStatsTable;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What programs that watch a cluster ask of it: a round of the Prometheus exporter and the pages of the Dashboard, each call a line
 * "name = answer" without what differs from run to run; a refusal is its code.
 */
final class MonitoringCalls {
    private static final List<String> TOPIC_STATISTICS = List.of("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE");
    private static final List<String> GROUP_STATISTICS = List.of("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS");
    private static final List<String> BROKER_STATISTICS = List.of("BROKER_PUT_NUMS", "BROKER_GET_NUMS");

    private final DefaultMQAdminExt admin;
    private final Map<String, String> names;
    private final List<String> lines = new ArrayList<>();

    private interface Call {
        Object answer() throws Exception;
    }

    MonitoringCalls(DefaultMQAdminExt admin, Map<String, String> names) {
        this.admin = admin;
        this.names = names;
    }

    /** The exporter's round for one topic and one group. */
    String exporter(String topic, String group) throws Exception {
        lines.clear();
        String broker = names.get("broker");
        asked("topics", () -> admin.fetchAllTopicList().getTopicList().contains(topic));
        asked("topic offsets", () -> messages(admin.examineTopicStats(topic)));
        asked("producers", () -> new TreeSet<>(admin.getAllProducerInfo(broker).getData().keySet()).contains("makers"));
        asked("groups of topic", () -> new TreeSet<>(admin.queryTopicConsumeByWho(topic).getGroupList()));
        asked("members", () -> admin.examineConsumerConnectionInfo(group).getConnectionSet().size());
        asked("message model", () -> admin.examineConsumerConnectionInfo(group).getMessageModel());
        ConsumeStats stats = admin.examineConsumeStats(group, topic);
        asked("lag", stats::computeTotalDiff);
        asked("consumed", () -> stats.getOffsetTable().values().stream().mapToLong(offset -> offset.getConsumerOffset()).sum());
        for (String name : TOPIC_STATISTICS) {
            asked(name, () -> known(broker, name, topic));
        }
        for (String name : GROUP_STATISTICS) {
            asked(name, () -> known(broker, name, topic + "@" + group));
        }
        for (String name : BROKER_STATISTICS) {
            asked(name, () -> known(broker, name, names.get("cluster")));
        }
        asked("statistics of a topic that is not", () -> known(broker, "TOPIC_PUT_NUMS", "NoSuchTopic"));
        asked("running information", () -> admin.getConsumerRunningInfo(group, names.get("client"), false).getStatusTable().keySet());
        return String.join("\n", lines);
    }

    /** What the Dashboard's pages ask: cluster, topics, groups, clients, messages. */
    String dashboard(String topic, String group) throws Exception {
        lines.clear();
        String broker = names.get("broker");
        asked("cluster", () -> admin.examineBrokerClusterInfo().getClusterAddrTable().values());
        Map<String, String> runtime = admin.fetchBrokerRuntimeStats(broker).getTable();
        for (String key : List.of("putTps", "getTransferedTps")) {
            asked(key, () -> runtime.containsKey(key));
        }
        for (String key : List.of("msgPutTotalTodayMorning", "msgPutTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalTodayNow",
            "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning", "bootTimestamp")) {
            asked(key, () -> Long.parseLong(runtime.get(key)) >= 0);
        }
        asked("version", () -> runtime.get("brokerVersionDesc"));
        asked("settings", () -> admin.getBrokerConfig(broker).getProperty("brokerName"));
        asked("route", () -> admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getWriteQueueNums());
        asked("topic's settings", () -> admin.examineTopicConfig(broker, topic).getReadQueueNums());
        asked("groups", () -> admin.getAllSubscriptionGroup(broker, 3_000).getSubscriptionGroupTable().containsKey(group));
        asked("group's settings", () -> admin.examineSubscriptionGroupConfig(broker, group).getRetryMaxTimes());
        asked("group's progress", () -> {
            ConsumeStats stats = admin.examineConsumeStats(group);
            return stats.getOffsetTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count() + " queues, behind " + stats.computeTotalDiff();
        });
        asked("progress of a group that is not", () -> admin.examineConsumeStats("no-such-group").computeTotalDiff());
        asked("producers of a topic", () -> admin.examineProducerConnectionInfo("makers", topic).getConnectionSet().size());
        MessageExt message = admin.viewMessage(topic, names.get("id 3"));
        asked("message", () -> message.getKeys() + " " + message.getTags() + " " + message.getProperties().keySet().size());
        asked("track", () -> admin.messageTrackDetail(message).stream().map(track -> track.getConsumerGroup() + " " + track.getTrackType()).toList());
        asked("consumed once more", () -> admin.consumeMessageDirectly(group, names.get("client"), topic, message.getMsgId()).getConsumeResult());
        asked("by key", () -> admin.queryMessage(topic, "key-3", 64, 0, System.currentTimeMillis()).getMessageList().size());
        asked("by a key that is not", () -> admin.queryMessage(topic, "no-such-key", 64, 0, System.currentTimeMillis()).getMessageList().size());
        MessageQueue queue = new MessageQueue(topic, "broker-a", 1);
        asked("by time", () -> admin.searchOffset(queue, 0) + " to " + admin.searchOffset(queue, System.currentTimeMillis() + 60_000));
        asked("dead letters", () -> admin.queryMessage("%DLQ%" + group, "key-3", 64, 0, System.currentTimeMillis()).getMessageList().size());
        return String.join("\n", lines);
    }

    private long messages(TopicStatsTable table) {
        return table.getOffsetTable().values().stream().mapToLong(offset -> offset.getMaxOffset() - offset.getMinOffset()).sum();
    }

    private String known(String broker, String name, String key) throws Exception {
        return admin.viewBrokerStatsData(broker, name, key).getStatsMinute().getTps() >= 0 ? "a rate" : "no rate";
    }

    private void asked(String name, Call call) throws Exception {
        Object answer;
        try {
            answer = call.answer();
        } catch (MQClientException refused) {
            answer = "CODE " + refused.getResponseCode();
        } catch (MQBrokerException refused) {
            answer = "CODE " + refused.getResponseCode();
        }
        lines.add(name + " = " + answer);
    }
}
