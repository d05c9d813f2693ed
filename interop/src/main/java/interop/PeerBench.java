package interop;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Apache RocketMQ's Java client, measured: one JSON line for each benchmark. Arguments: name server, names of benchmarks. */
public final class PeerBench {
    private static final int WARM_UP_MS = 3_000;
    private static final int MEASURE_MS = 6_000;
    private static final int QUEUES = 4;

    private final String nameServer;
    private final DefaultMQProducer producer;

    private PeerBench(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer = new DefaultMQProducer("bench-producer");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("bench-producer");
        producer.setDefaultTopicQueueNums(QUEUES);
        producer.setSendMsgTimeout(10_000);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.start();
    }

    public static void main(String[] args) {
        Stores.orHalt(() -> {
            PeerBench bench = new PeerBench(args[0]);
            for (String name : Arrays.copyOfRange(args, 1, args.length)) {
                bench.run(name);
            }
        });
    }

    private void run(String name) throws Exception {
        switch (name) {
            case "sync_1" -> sync(name, 1);
            case "sync_64", "sync_flush_64" -> sync(name, 64);
            case "async" -> async(name);
            case "batch_100" -> batch(name, 100, 1_000);
            case "batch_1k" -> batch(name, 1_024, 400);
            case "consume" -> consume(name, 100, 1_000, 600_000, 32);
            case "consume_1k" -> consume(name, 1_024, 400, 240_000, 32);
            case "consume_one" -> consume(name, 100, 1_000, 400_000, 1);
            case "latency" -> latency(name);
            default -> throw new IllegalArgumentException(name);
        }
    }

    /** {@code threads} callers, each waits for its answer. */
    private void sync(String name, int threads) throws Exception {
        byte[] body = new byte[100];
        producer.send(new Message(name, body));
        List<long[]> samples = new ArrayList<>();
        AtomicInteger errors = new AtomicInteger();
        long begin = System.nanoTime() + WARM_UP_MS * 1_000_000L;
        long end = begin + MEASURE_MS * 1_000_000L;
        List<Thread> running = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                long[] own = caller(name, body, begin, end, errors);
                synchronized (samples) {
                    samples.add(own);
                }
            });
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        long[] all = samples.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        print(name, all.length, MEASURE_MS, errors.get(), all);
    }

    private long[] caller(String topic, byte[] body, long begin, long end, AtomicInteger errors) {
        long[] samples = new long[1 << 12];
        int count = 0;
        for (long now = System.nanoTime(); now < end; ) {
            boolean stored = false;
            try {
                stored = producer.send(new Message(topic, body)).getSendStatus() == SendStatus.SEND_OK;
            } catch (Exception failure) {
                stored = false;
            }
            long then = System.nanoTime();
            if (!stored) {
                errors.incrementAndGet();
            } else if (now >= begin) {
                if (count == samples.length) {
                    samples = Arrays.copyOf(samples, count * 2);
                }
                samples[count++] = then - now;
            }
            now = then;
        }
        return Arrays.copyOf(samples, count);
    }

    /** One caller, callbacks, at most 1,000 unanswered. */
    private void async(String name) throws Exception {
        byte[] body = new byte[100];
        producer.send(new Message(name, body));
        Semaphore permits = new Semaphore(1_000);
        AtomicLong done = new AtomicLong();
        AtomicInteger errors = new AtomicInteger();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                done.incrementAndGet();
                permits.release();
            }

            @Override
            public void onException(Throwable failure) {
                errors.incrementAndGet();
                permits.release();
            }
        };
        long begin = System.nanoTime() + WARM_UP_MS * 1_000_000L;
        long end = begin + MEASURE_MS * 1_000_000L;
        long before = -1;
        while (System.nanoTime() < end) {
            if (before < 0 && System.nanoTime() >= begin) {
                before = done.get();
            }
            if (!permits.tryAcquire(10, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no answer for 10 s");
            }
            producer.send(new Message(name, body), callback);
        }
        print(name, done.get() - before, MEASURE_MS, errors.get(), new long[0]);
        permits.tryAcquire(1_000, 15, TimeUnit.SECONDS);
    }

    /** Two callers, each sends one batch after another. */
    private void batch(String name, int size, int count) throws Exception {
        producer.send(new Message(name, new byte[size]));
        AtomicLong done = new AtomicLong();
        AtomicInteger errors = new AtomicInteger();
        long end = System.nanoTime() + (WARM_UP_MS + MEASURE_MS) * 1_000_000L;
        for (int i = 0; i < 2; i++) {
            daemon(() -> {
                while (System.nanoTime() < end) {
                    try {
                        producer.send(messages(name, size, count));
                        done.addAndGet(count);
                    } catch (Exception failure) {
                        errors.incrementAndGet();
                    }
                }
            });
        }
        Thread.sleep(WARM_UP_MS);
        long before = done.get();
        Thread.sleep(MEASURE_MS);
        print(name, done.get() - before, MEASURE_MS, errors.get(), new long[0]);
        Thread.sleep(500);
    }

    private static List<Message> messages(String topic, int size, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            messages.add(new Message(topic, new byte[size]));
        }
        return messages;
    }

    /** A backlog, taken by a push consumer in pieces of {@code listenerBatch}. */
    private void consume(String name, int size, int batch, int backlog, int listenerBatch) throws Exception {
        for (int sent = 0; sent < backlog; sent += batch) {
            producer.send(messages(name, size, batch));
        }
        AtomicLong done = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch finished = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(name, (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (done.addAndGet(messages.size()) >= backlog) {
                finished.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.setConsumeMessageBatchMaxSize(listenerBatch);
        consumer.start();
        finished.await(40, TimeUnit.SECONDS);
        print(name, done.get(), (System.nanoTime() - first.get()) / 1_000_000.0, 0, new long[0]);
        consumer.shutdown();
    }

    /** Send to listener, one message every 10 ms to an idle broker. */
    private void latency(String name) throws Exception {
        producer.send(new Message(name, new byte[8]));
        List<Long> samples = java.util.Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(name, (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                if (sent != 0) {
                    samples.add(now - sent);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(4_000);
        for (int i = 0; i < 900; i++) {
            if (i == 300) {
                Thread.sleep(500);
                samples.clear();
            }
            producer.send(new Message(name, ByteBuffer.allocate(8).putLong(System.nanoTime()).array()));
            Thread.sleep(10);
        }
        Thread.sleep(1_000);
        long[] all = samples.stream().mapToLong(Long::longValue).sorted().toArray();
        print(name, all.length, 0, 600 - all.length, all);
        consumer.shutdown();
    }

    private DefaultMQPushConsumer consumer(String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("bench-" + topic);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        return consumer;
    }

    private static void daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    private static void print(String name, long count, double elapsedMs, int errors, long[] sortedNanos) {
        Json line = new Json().put("bench", name).put("count", count).put("errors", errors);
        if (elapsedMs > 0) {
            line.put("per_second", Math.round(count / elapsedMs * 1_000));
        }
        if (sortedNanos.length > 0) {
            line.put("p50_ms", sortedNanos[sortedNanos.length / 2] / 1e6).put("p99_ms", sortedNanos[sortedNanos.length * 99 / 100] / 1e6);
        }
        System.out.println(line);
        System.out.flush();
    }
}
