package interop;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.PlainAccessConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Unmodified Java clients with keys: an administrator, a shop that sends, a group that reads, and what each of them may not. Arguments: name server, secret, broker address,
 * a directory for mqadmin's conf/tools.yml.
 */
public final class AccessCheck {
    private static final String TOPIC = "orders";

    private final String nameServer;

    private final String secret;

    private AccessCheck(String nameServer, String secret) {
        this.nameServer = nameServer;
        this.secret = secret;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new AccessCheck(args[0], args[1]).check(args[2], Path.of(args[3])));
    }

    private interface Attempt {
        void run() throws Exception;
    }

    private void check(String broker, Path home) throws Exception {
        DefaultMQAdminExt admin = admin("operator", "admin");
        Run.patiently(() -> admin.createTopic("broker-a", TOPIC, 2));
        Thread.sleep(500);
        DefaultMQProducer shop = producer("web-shop", secret);
        SendResult sent = shop.send(new Message(TOPIC, "tag", "key-1", "one".getBytes(StandardCharsets.UTF_8)));
        print("send", sent.getSendStatus().toString());
        print("batch", shop.send(List.of(new Message(TOPIC, "two".getBytes()), new Message(TOPIC, "three".getBytes()))).getSendStatus().toString());
        told("other topic", () -> shop.send(new Message("payroll", "x".getBytes())));
        shop.shutdown();
        refused("wrong secret", broker, "web-shop", "another secret than that");
        refused("unknown key", broker, "nobody-at-all", secret);
        refused("no keys", broker, null, null);
        told("route with a wrong secret", () -> producer("web-shop", "another secret").send(new Message(TOPIC, "x".getBytes())));
        print("consumed", Long.toString(consumed()));
        told("other group", () -> pull("others"));
        told("delete by a reader", () -> admin("billing", "reader").deleteTopicInBroker(Collections.singleton(broker), TOPIC));
        DefaultMQAdminExt reader = admin("billing", "looks");
        print("by id", new String(reader.viewMessage(TOPIC, sent.getMsgId()).getBody(), StandardCharsets.UTF_8));
        mqadmin(broker, home);
        accounts(admin, broker);
        told("accounts by a reader", () -> reader.examineBrokerClusterAclConfig(broker));
        reader.shutdown();
        admin.shutdown();
    }

    /** A tool asks the broker itself: without its keys no name server tells a route. */
    private void refused(String name, String broker, String key, String given) throws Exception {
        told(name, () -> {
            DefaultMQAdminExt tool = new DefaultMQAdminExt(key == null ? null : hook(key, given), 20_000L);
            tool.setNamesrvAddr(nameServer);
            tool.setInstanceName(name);
            tool.start();
            try {
                tool.fetchBrokerRuntimeStats(broker);
            } finally {
                tool.shutdown();
            }
        });
    }

    private long consumed() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bills", hook("billing", secret), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        CountDownLatch all = new CountDownLatch(3);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> all.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        all.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        return 3 - all.getCount();
    }

    private void pull(String group) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook("billing", secret));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.start();
        try {
            consumer.pull(new MessageQueue(TOPIC, "broker-a", 0), "*", 0, 32);
        } finally {
            consumer.shutdown();
        }
    }

    /** mqadmin with its keys in conf/tools.yml, as operators have it. */
    private void mqadmin(String broker, Path home) throws Exception {
        Files.createDirectories(home.resolve("conf"));
        Files.writeString(home.resolve("conf/tools.yml"), "accessKey: operator\nsecretKey: \"" + secret + "\"\n");
        Files.writeString(home.resolve("conf/logback_tools.xml"), "<configuration/>");
        System.setProperty("rocketmq.home.dir", home.toString());
        MQAdminStartup.main0(new String[] {"updateTopic", "-n", nameServer, "-b", broker, "-t", "made-by-mqadmin"}, null);
        System.out.println();
    }

    /** An operator makes an account, looks at all of them, and takes it away again. */
    private void accounts(DefaultMQAdminExt admin, String broker) throws Exception {
        PlainAccessConfig made = new PlainAccessConfig();
        made.setAccessKey("warehouse");
        made.setSecretKey("the secret of goods");
        made.setDefaultTopicPerm("DENY");
        made.setDefaultGroupPerm("SUB");
        made.setTopicPerms(List.of("orders=SUB"));
        made.setGroupPerms(List.of());
        admin.createAndUpdatePlainAccessConfig(broker, made);
        StringBuilder found = new StringBuilder();
        for (PlainAccessConfig each : admin.examineBrokerClusterAclConfig(broker).getPlainAccessConfigs()) {
            found.append(each.getAccessKey()).append("=").append(each.getSecretKey()).append("=").append(each.getTopicPerms()).append(" ");
        }
        print("accounts", found.toString());
        print("version", admin.examineBrokerClusterAclVersionInfo(broker).getBrokerName());
        admin.updateGlobalWhiteAddrConfig(broker, "10.9.9.9");
        admin.deletePlainAccessConfig(broker, "warehouse");
        told("deleted twice", () -> admin.deletePlainAccessConfig(broker, "warehouse"));
        StringBuilder left = new StringBuilder();
        admin.examineBrokerClusterAclConfig(broker).getPlainAccessConfigs().forEach(each -> left.append(each.getAccessKey()).append(" "));
        print("left", left + String.valueOf(admin.examineBrokerClusterAclConfig(broker).getGlobalWhiteAddrs()));
    }

    private DefaultMQAdminExt admin(String key, String instance) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(hook(key, secret), 20_000L);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName(instance);
        admin.start();
        return admin;
    }

    private DefaultMQProducer producer(String key, String given) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-producers", key == null ? null : hook(key, given));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer-" + key + "-" + given);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private static RPCHook hook(String key, String given) {
        return new AclClientRPCHook(new SessionCredentials(key, given));
    }

    private static void told(String name, Attempt attempt) {
        try {
            attempt.run();
            print(name, "it was allowed");
        } catch (Exception refusal) {
            StringBuilder words = new StringBuilder();
            for (Throwable cause = refusal; cause != null; cause = cause.getCause()) {
                words.append(cause.getMessage()).append(" ");
            }
            print(name, words.toString());
        }
    }

    private static void print(String name, String told) {
        System.out.println(new Json().put("check", name).put("told", told));
        System.out.flush();
    }
}
