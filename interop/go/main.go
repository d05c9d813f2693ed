// Runs Apache RocketMQ's Go client against a cluster and prints what came of each step, an object of
// JSON a line:
//
//	go-check NAME_SERVER TOPIC GROUP SENT AWAITED [ACCESS_KEY SECRET_KEY]
//
// It sends so many messages with tag, key and a property, half of them one by one, half without
// waiting; then it consumes the topic from its beginning until AWAITED messages came or 30 s are
// over. With a group of "" it only sends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const wait = 30 * time.Second

func tell(check string, told any) {
	line, _ := json.Marshal(map[string]any{"check": check, "told": told})
	fmt.Println(string(line))
}

func message(topic string, number int) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(fmt.Sprintf("go %d", number)))
	made.WithTag("gopher").WithKeys([]string{fmt.Sprintf("key-%d", number)})
	made.WithProperty("city", "Zürich")
	return made
}

func send(server []string, keys primitive.Credentials, topic string, count int) {
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer(server),
		producer.WithGroupName("gophers"),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(5*time.Second),
		producer.WithCredentials(keys),
	)
	if err == nil {
		err = sender.Start()
	}
	if err != nil {
		tell("send", err.Error())
		return
	}
	defer sender.Shutdown()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var waiting sync.WaitGroup
	stored := make(chan error, count)
	for number := 0; number < count; number++ {
		if number%2 == 0 {
			_, err := sender.SendSync(ctx, message(topic, number))
			stored <- err
			continue
		}
		waiting.Add(1)
		err := sender.SendAsync(ctx, func(_ context.Context, _ *primitive.SendResult, err error) {
			stored <- err
			waiting.Done()
		}, message(topic, number))
		if err != nil {
			stored <- err
			waiting.Done()
		}
	}
	waiting.Wait()
	close(stored)
	for err := range stored {
		if err != nil {
			tell("send", err.Error())
			return
		}
	}
	tell("send", "OK")
}

func consume(server []string, keys primitive.Credentials, topic, group string, count int) {
	taker, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(server),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithCredentials(keys),
	)
	if err != nil {
		tell("consumed", err.Error())
		return
	}
	var lock sync.Mutex
	came := map[string][]string{}
	all := make(chan bool, 10_000)
	err = taker.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			lock.Lock()
			defer lock.Unlock()
			for _, one := range messages {
				came[string(one.Body)] = []string{one.GetTags(), one.GetKeys(), one.GetProperty("city")}
				all <- true
			}
			return consumer.ConsumeSuccess, nil
		})
	if err == nil {
		err = taker.Start()
	}
	if err != nil {
		tell("consumed", err.Error())
		return
	}
	end := time.After(wait)
	for number := 0; number < count; number++ {
		select {
		case <-all:
		case <-end:
			number = count
		}
	}
	_ = taker.Shutdown() // commits its offsets
	lock.Lock()
	defer lock.Unlock()
	tell("consumed", came)
}

func main() {
	rlog.SetLogLevel("fatal")
	server, topic, group := []string{os.Args[1]}, os.Args[2], os.Args[3]
	sent, _ := strconv.Atoi(os.Args[4])
	awaited, _ := strconv.Atoi(os.Args[5])
	keys := primitive.Credentials{}
	if len(os.Args) > 7 {
		keys = primitive.Credentials{AccessKey: os.Args[6], SecretKey: os.Args[7]}
	}
	if sent > 0 {
		send(server, keys, topic, sent)
	}
	if group != "" {
		consume(server, keys, topic, group, awaited)
	}
}
