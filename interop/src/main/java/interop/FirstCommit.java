package interop;

import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A group's first commit, which stands alone: RocketMQ's broker makes the group's table of offsets with it, and of several
 * first commits that come at once (one for each queue, as a consumer ends) it keeps one.
 */
final class FirstCommit {
    private FirstCommit() {
    }

    static void of(DefaultMQAdminExt admin, String group, String topic) throws Exception {
        String address = admin.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr();
        admin.updateConsumeOffset(address, group, new MessageQueue(topic, "broker-a", 0), 0);
    }
}
