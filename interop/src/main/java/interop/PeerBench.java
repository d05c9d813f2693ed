package interop;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.ResponseCode;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Apache RocketMQ's Java client, measured: one JSON line for each benchmark. Arguments: name server, scale (1 = full length),
 * names of benchmarks. A rate is the median of {@link #ROUNDS} rounds behind one that warms up. What a
 * busy broker refuses is sent again; a round that fails otherwise, or does not end in its patience, ends the program with an error.
 */
public final class PeerBench {
    private static final int WARM_UP_MS = 3_000;
    private static final int MEASURE_MS = 6_000;
    private static final int PATIENCE_S = 120;
    private static final int QUEUES = 4;
    private static final int ROUNDS = 5;
    private static final int UNANSWERED = 1_000;
    private static final int WARM_UP_MESSAGES = 300;

    private final String nameServer;
    private final double scale;
    private final DefaultMQProducer producer;

    /** Messages a second of one round. */
    private interface Round {
        double perSecond(int number) throws Exception;
    }

    private PeerBench(String nameServer, double scale) throws Exception {
        this.nameServer = nameServer;
        this.scale = scale;
        producer = new DefaultMQProducer("bench-producer", signing());
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("bench-producer");
        producer.setDefaultTopicQueueNums(QUEUES);
        producer.setSendMsgTimeout(10_000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
    }

    public static void main(String[] args) {
        Run.orHalt(() -> {
            PeerBench bench = new PeerBench(args[0], Double.parseDouble(args[1]));
            for (String name : Arrays.copyOfRange(args, 2, args.length)) {
                bench.run(name);
            }
        });
    }

    private void run(String name) throws Exception {
        switch (name) {
            case "sync_1" -> sync(name, 1);
            case "sync_64", "sync_flush_64" -> sync(name, 64);
            case "async" -> async(name, false);
            case "async_labels" -> async(name, true);
            case "batch_100" -> batch(name, 100, 1_000, 1_500_000);
            case "batch_1k" -> batch(name, 1_024, 400, 500_000);
            case "consume" -> consume(name, 100, 1_000, 1_500_000, 1);
            case "consume_1k" -> consume(name, 1_024, 400, 500_000, 1);
            case "consume_32" -> consume(name, 100, 1_000, 1_500_000, 32);
            case "consume_1k_32" -> consume(name, 1_024, 400, 500_000, 32);
            case "latency" -> latency(name, 10);
            default -> throw new IllegalArgumentException(name);
        }
    }

    private int scaled(int full) {
        return Math.max(1_000, (int) (full * scale));
    }

    /** As before a round of ours: the disk has what waited for it, and memory is at hand. */
    private static void settle() throws Exception {
        String[] command = System.getProperty("interop.settle").split("\n");
        if (new ProcessBuilder(command).inheritIO().start().waitFor() != 0) {
            throw new IllegalStateException("settle failed: see what it wrote above");
        }
    }

    private void rounds(String name, Round round) throws Exception {
        double[] rates = new double[ROUNDS];
        settle();
        round.perSecond(0);
        for (int i = 0; i < ROUNDS; i++) {
            settle();
            rates[i] = round.perSecond(i + 1);
        }
        Arrays.sort(rates);
        print(name, rates[ROUNDS / 2], 0, new long[0]);
    }

    /** {@code threads} callers, each waits for its answer. */
    private void sync(String name, int threads) throws Exception {
        byte[] body = new byte[100];
        producer.send(new Message(name, body));
        List<long[]> samples = new ArrayList<>();
        AtomicInteger errors = new AtomicInteger();
        long measureMs = scaled(MEASURE_MS);
        long begin = System.nanoTime() + WARM_UP_MS * 1_000_000L;
        long end = begin + measureMs * 1_000_000L;
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            running.add(daemon(() -> {
                long[] own = caller(name, body, begin, end, errors);
                synchronized (samples) {
                    samples.add(own);
                }
            }));
        }
        join(running);
        long[] all = samples.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        print(name, all.length / (double) measureMs * 1_000, errors.get(), all);
    }

    private long[] caller(String topic, byte[] body, long begin, long end, AtomicInteger errors) {
        long[] samples = new long[1 << 12];
        int count = 0;
        for (long now = System.nanoTime(); now < end; ) {
            try {
                if (producer.send(new Message(topic, body)).getSendStatus() != SendStatus.SEND_OK) {
                    errors.incrementAndGet();
                }
            } catch (Exception failure) {
                if (busy(failure)) {
                    continue;
                }
                errors.incrementAndGet();
            }
            long then = System.nanoTime();
            if (now >= begin) {
                if (count == samples.length) {
                    samples = Arrays.copyOf(samples, count * 2);
                }
                samples[count++] = then - now;
            }
            now = then;
        }
        return Arrays.copyOf(samples, count);
    }

    /** One caller; at most 1,000 unanswered; the round ends when the result of each was taken. */
    private void async(String name, boolean labels) throws Exception {
        byte[] body = new byte[100];
        producer.send(new Message(name, body));
        int count = scaled(1_000_000);
        Semaphore permits = new Semaphore(UNANSWERED);
        rounds(name, number -> {
            List<CompletableFuture<SendResult>> futures = new ArrayList<>(count);
            long begin = System.nanoTime();
            for (int i = 0; i < count; i++) {
                if (!permits.tryAcquire(PATIENCE_S, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("no answer for " + PATIENCE_S + " s");
                }
                Message message = new Message(name, body);
                if (labels) {
                    message.setTags("paid");
                    message.setKeys("o-1");
                    message.putUserProperty("region", "eu");
                    message.putUserProperty("shop", "7");
                }
                CompletableFuture<SendResult> future = new CompletableFuture<>();
                send(message, future, permits);
                futures.add(future);
            }
            for (CompletableFuture<SendResult> future : futures) {
                if (future.get(PATIENCE_S, TimeUnit.SECONDS).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("a message was not stored");
                }
            }
            return count / seconds(begin);
        });
    }

    private void send(Message message, CompletableFuture<SendResult> future, Semaphore permits) throws Exception {
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
                permits.release();
            }

            @Override
            public void onException(Throwable failure) {
                try {
                    if (busy(failure)) {
                        send(message, future, permits);
                        return;
                    }
                    future.completeExceptionally(failure);
                } catch (Exception second) {
                    future.completeExceptionally(second);
                }
                permits.release();
            }
        });
    }

    private static boolean busy(Throwable failure) {
        return failure instanceof MQBrokerException refused && refused.getResponseCode() == ResponseCode.SYSTEM_BUSY;
    }

    private void send(List<Message> batch) throws Exception {
        long patience = System.nanoTime() + PATIENCE_S * 1_000_000_000L;
        while (true) {
            try {
                producer.send(batch);
                return;
            } catch (MQBrokerException failure) {
                if (!busy(failure) || System.nanoTime() > patience) {
                    throw failure;
                }
            }
        }
    }

    /** Two callers, each sends one batch of new messages after another. */
    private void batch(String name, int size, int batch, int count) throws Exception {
        int batches = (scaled(count) + batch - 1) / batch;
        byte[][] bodies = bodies(size, batch);
        rounds(name, number -> {
            AtomicInteger turns = new AtomicInteger(batches);
            AtomicInteger stored = new AtomicInteger();
            List<Thread> running = new ArrayList<>();
            long begin = System.nanoTime();
            for (int i = 0; i < 2; i++) {
                running.add(daemon(() -> {
                    while (turns.getAndDecrement() > 0) {
                        try {
                            send(messages(name, bodies));
                            stored.incrementAndGet();
                        } catch (Exception failure) {
                            throw new IllegalStateException(failure);
                        }
                    }
                }));
            }
            join(running);
            if (stored.get() != batches) {
                throw new IllegalStateException("only " + stored + " of " + batches + " batches were stored");
            }
            return (double) batches * batch / seconds(begin);
        });
    }

    private static byte[][] bodies(int size, int count) {
        byte[][] bodies = new byte[count][size];
        for (byte[] body : bodies) {
            new Random().nextBytes(body);
        }
        return bodies;
    }

    private static List<Message> messages(String topic, byte[][] bodies) {
        List<Message> messages = new ArrayList<>(bodies.length);
        for (byte[] body : bodies) {
            messages.add(new Message(topic, body));
        }
        return messages;
    }

    /** A backlog, taken by a new group in each round, in pieces of {@code listenerBatch} (1 = the default); every body is read. */
    private void consume(String name, int size, int batch, int count, int listenerBatch) throws Exception {
        int backlog = scaled(count);
        byte[][] bodies = bodies(size, batch);
        for (int sent = 0; sent < backlog; sent += batch) {
            send(messages(name, bodies));
        }
        rounds(name, number -> {
            AtomicLong done = new AtomicLong();
            AtomicLong bytes = new AtomicLong();
            AtomicLong first = new AtomicLong();
            AtomicLong last = new AtomicLong();
            CountDownLatch finished = new CountDownLatch(1);
            DefaultMQPushConsumer consumer = consumer(name, number, (messages, context) -> {
                first.compareAndSet(0, System.nanoTime());
                for (MessageExt message : messages) {
                    bytes.addAndGet(message.getBody().length);
                }
                if (done.addAndGet(messages.size()) >= backlog && last.compareAndSet(0, System.nanoTime())) {
                    finished.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.setConsumeMessageBatchMaxSize(listenerBatch);
            consumer.start();
            if (!finished.await(PATIENCE_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("only " + done + " of " + backlog + " messages came");
            }
            consumer.shutdown();
            return backlog * 1e9 / (last.get() - first.get());
        });
    }

    /** Send to listener, one message every {@code everyMs} to an idle broker. */
    private void latency(String name, int everyMs) throws Exception {
        producer.send(new Message(name, new byte[8]));
        int count = scaled(1_500);
        CountDownLatch finished = new CountDownLatch(WARM_UP_MESSAGES + count);
        List<Long> samples = java.util.Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(name, 0, (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                if (sent != 0) {
                    samples.add(now - sent);
                    finished.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(4_000);
        long due = System.nanoTime();
        for (int i = 0; i < WARM_UP_MESSAGES + count; i++) {
            producer.send(new Message(name, ByteBuffer.allocate(8).putLong(System.nanoTime()).array()));
            due += everyMs * 1_000_000L;
            LockSupport.parkNanos(due - System.nanoTime());
        }
        if (!finished.await(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(finished.getCount() + " messages did not come");
        }
        consumer.shutdown();
        long[] measured = samples.stream().skip(WARM_UP_MESSAGES).mapToLong(Long::longValue).sorted().toArray();
        print(name, 0, 0, measured);
    }

    private DefaultMQPushConsumer consumer(String topic, int round, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + topic + "-" + round, signing(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("bench-" + topic + "-" + round);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        return consumer;
    }

    /** What signs requests for the account of the environment; null without one. */
    private static RPCHook signing() {
        String key = System.getenv("INTEROP_ACCESS_KEY");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, System.getenv("INTEROP_SECRET_KEY")));
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void join(List<Thread> running) throws InterruptedException {
        for (Thread thread : running) {
            thread.join(PATIENCE_S * 1_000L);
            if (thread.isAlive()) {
                throw new IllegalStateException("a sending thread did not end in " + PATIENCE_S + " s");
            }
        }
    }

    private static double seconds(long begin) {
        return (System.nanoTime() - begin) / 1e9;
    }

    private static void print(String name, double perSecond, int errors, long[] sortedNanos) {
        if (errors > 0) {
            throw new IllegalStateException(errors + " sends of " + name + " failed");
        }
        Json line = new Json().put("bench", name);
        if (perSecond > 0) {
            line.put("per_second", Math.round(perSecond));
        }
        if (sortedNanos.length > 0) {
            line.put("p50_ms", sortedNanos[sortedNanos.length / 2] / 1e6).put("p99_ms", sortedNanos[sortedNanos.length * 99 / 100] / 1e6);
        }
        System.out.println(line);
        System.out.flush();
    }
}
