package interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.ClusterInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs commands of RocketMQ's own mqadmin beside a producer and a push consumer of its own client, and tells what each printed.
 * Arguments: name server, a directory of its own, a file of commands: label and arguments between tabs, {names} filled in.
 */
public final class AdminCheck {
    private static final String TOPIC = "Orders";
    private static final String GROUP = "billing";
    private static final long COMMAND_MS = 20_000;

    private final String nameServer;
    private final Path directory;
    private final Map<String, String> names = new LinkedHashMap<>();

    private AdminCheck(String nameServer, Path directory) {
        this.nameServer = nameServer;
        this.directory = directory;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new AdminCheck(args[0], Path.of(args[1])).run(Files.readAllLines(Path.of(args[2]))));
    }

    private void run(List<String> commands) throws Exception {
        Path conf = Files.createDirectories(directory.resolve("conf"));
        Files.writeString(conf.resolve("logback_tools.xml"), "<configuration><root level=\"OFF\"/></configuration>");
        System.setProperty(MixAll.ROCKETMQ_HOME_PROPERTY, directory.toString());
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, nameServer);
        PrintStream told = System.out;
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
        admin.setInstanceName("check");
        admin.start();
        Run.patiently(() -> admin.createTopic("broker-a", TOPIC, 4));
        prepare(admin);
        CountDownLatch consumed = new CountDownLatch(12);
        DefaultMQPushConsumer consumer = consumer(consumed);
        DefaultMQProducer producer = producer();
        consumed.await(20, TimeUnit.SECONDS);
        settle(consumer.getDefaultMQPushConsumerImpl());
        MonitoringCalls calls = new MonitoringCalls(admin, names);
        told.println(new Json().put("command", "exporter").put("printed", calls.exporter(TOPIC, GROUP)));
        told.println(new Json().put("command", "dashboard").put("printed", calls.dashboard(TOPIC, GROUP)));
        for (String line : commands) {
            String[] parts = line.split("\t");
            long began = System.nanoTime();
            String printed = printedBy(filledIn(parts));
            told.println(new Json().put("command", parts[0]).put("printed", printed).put("ms", (System.nanoTime() - began) / 1_000_000));
            told.flush();
        }
        told.println(new Json().put("command", "all").put("printed", String.join(" ", commandNames())).put("names", names));
        producer.shutdown();
        consumer.shutdown();
        admin.shutdown();
    }

    private void prepare(DefaultMQAdminExt admin) throws Exception {
        ClusterInfo info = admin.examineBrokerClusterInfo();
        names.put("name server", nameServer);
        names.put("cluster", info.getClusterAddrTable().keySet().iterator().next());
        names.put("broker", info.getBrokerAddrTable().get("broker-a").getBrokerAddrs().get(0L));
        names.put("directory", directory.toString());
        names.put("begin", Long.toString(System.currentTimeMillis() - 1_000));
    }

    private DefaultMQPushConsumer consumer(CountDownLatch consumed) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setInstanceName("member");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        names.put("client", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        return consumer;
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("makers", true);
        producer.setInstanceName("maker");
        producer.start();
        for (int number = 0; number < 12; number++) {
            Message message = new Message(TOPIC, number % 2 == 0 ? "even" : "odd", "key-" + number, ("body-" + number).getBytes(StandardCharsets.UTF_8));
            SendResult sent = producer.send(message, new MessageQueue(TOPIC, "broker-a", number % 4));
            names.put("id " + number, sent.getMsgId());
            names.put("offset id " + number, sent.getOffsetMsgId());
        }
        names.put("end", Long.toString(System.currentTimeMillis() + 60_000));
        return producer;
    }

    /** The consumer holds its retry queue, too, and its progress is committed: commands are to find the same on either side. */
    private static void settle(DefaultMQPushConsumerImpl consumer) throws Exception {
        for (int tries = 0; tries < 100 && consumer.getRebalanceImpl().getProcessQueueTable().size() < 5; tries++) {
            Thread.sleep(100);
            consumer.getmQClientFactory().updateTopicRouteInfoFromNameServer(MixAll.getRetryTopic(GROUP));
            consumer.doRebalance();
        }
        Thread.sleep(500);
        consumer.persistConsumerOffset();
        consumer.getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        Thread.sleep(500);
    }

    private String[] filledIn(String[] parts) {
        String[] arguments = new String[parts.length - 1];
        for (int index = 1; index < parts.length; index++) {
            String text = parts[index];
            for (Map.Entry<String, String> name : names.entrySet()) {
                text = text.replace("{" + name.getKey() + "}", name.getValue());
            }
            arguments[index - 1] = text;
        }
        return arguments;
    }

    /** The commands that the jar has. */
    private static List<String> commandNames() throws Exception {
        MQAdminStartup.initCommand();
        List<String> found = new ArrayList<>();
        for (Object command : subCommands()) {
            found.add(((SubCommand) command).commandName());
        }
        return found;
    }

    /** Commands keep their clients from one run to the next, shut down by then: a new run needs new ones. */
    private static List<?> subCommands() throws Exception {
        Field field = MQAdminStartup.class.getDeclaredField("subCommandList");
        field.setAccessible(true);
        return (List<?>) field.get(null);
    }

    /** What a command printed, and where it was stopped because it goes on for ever. */
    private static String printedBy(String[] arguments) throws Exception {
        subCommands().clear();
        PrintStream before = System.out;
        PrintStream complaints = System.err;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream into = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        System.setOut(into);
        System.setErr(into);
        Thread thread = new Thread(() -> MQAdminStartup.main0(arguments, null), "command");
        thread.setDaemon(true);
        thread.start();
        boolean endless = arguments[0].equals("clusterRT"); // it goes on after its first row
        for (long end = System.currentTimeMillis() + COMMAND_MS; thread.isAlive() && System.currentTimeMillis() < end; ) {
            thread.join(100);
            if (endless && bytes.toString(StandardCharsets.UTF_8).contains("broker-a")) {
                break;
            }
        }
        boolean stopped = thread.isAlive();
        thread.interrupt();
        thread.join(1_000);
        System.setOut(before);
        System.setErr(complaints);
        return bytes.toString(StandardCharsets.UTF_8) + (stopped ? "\n[stopped]" : "");
    }
}
