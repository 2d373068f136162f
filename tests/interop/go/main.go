// Drives Apache's Go client: what is sent comes as JSON lines on the input, what it sends or receives goes to the output as JSON lines.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type message struct {
	Body       string            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	Delay      int               `json:"delay_level"`
	Sharding   string            `json:"ordering_key"`
}

var output sync.Mutex

func say(value any) {
	output.Lock()
	defer output.Unlock()
	text, err := json.Marshal(value)
	must(err)
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(topic string) []*primitive.Message {
	var found []*primitive.Message
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one message
		must(json.Unmarshal(lines.Bytes(), &one))
		body, err := base64.StdEncoding.DecodeString(one.Body)
		must(err)
		built := primitive.NewMessage(topic, body)
		if one.Tag != "" {
			built.WithTag(one.Tag)
		}
		if len(one.Keys) > 0 {
			built.WithKeys(one.Keys)
		}
		if one.Sharding != "" {
			built.WithShardingKey(one.Sharding)
		}
		if one.Delay > 0 {
			built.WithDelayTimeLevel(one.Delay)
		}
		for name, value := range one.Properties {
			built.WithProperty(name, value)
		}
		found = append(found, built)
	}
	return found
}

func result(sent *primitive.SendResult) map[string]any {
	return map[string]any{
		"status": int(sent.Status), "msg_id": sent.MsgID, "offset_msg_id": sent.OffsetMsgID,
		"queue_id": sent.MessageQueue.QueueId, "queue_offset": sent.QueueOffset,
	}
}

func view(one *primitive.MessageExt) map[string]any {
	return map[string]any{
		"topic": one.Topic, "body": base64.StdEncoding.EncodeToString(one.Body), "tag": one.GetTags(), "keys": one.GetKeys(),
		"properties": one.GetProperties(), "msg_id": one.MsgId, "offset_msg_id": one.OffsetMsgId, "queue_id": one.Queue.QueueId,
		"queue_offset": one.QueueOffset, "reconsume_times": one.ReconsumeTimes, "born_timestamp_ms": one.BornTimestamp,
	}
}

func send(namesrv, topic, how string) {
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})), producer.WithGroupName("go_producer"),
	}
	if how == "keyed" {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	sender, err := rocketmq.NewProducer(options...)
	must(err)
	must(sender.Start())
	defer sender.Shutdown()
	messages := read(topic)
	switch how {
	case "batch":
		sent, err := sender.SendSync(context.Background(), messages...)
		must(err)
		say(result(sent))
	case "async":
		var waiting sync.WaitGroup
		for _, one := range messages {
			waiting.Add(1)
			must(sender.SendAsync(context.Background(), func(_ context.Context, sent *primitive.SendResult, err error) {
				must(err)
				say(result(sent))
				waiting.Done()
			}, one))
		}
		waiting.Wait()
	case "oneway":
		for _, one := range messages {
			must(sender.SendOneWay(context.Background(), one))
		}
		time.Sleep(500 * time.Millisecond)
	default:
		for _, one := range messages {
			sent, err := sender.SendSync(context.Background(), one)
			must(err)
			say(result(sent))
		}
	}
}

type deciding struct{}

func (deciding) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return decide(string(one.Body))
}

func (deciding) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	say(map[string]any{"checked": string(one.Body)})
	return primitive.CommitMessageState
}

func decide(body string) primitive.LocalTransactionState {
	switch body {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func transactions(namesrv, topic string, seconds int) {
	sender, err := rocketmq.NewTransactionProducer(deciding{},
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})), producer.WithGroupName("go_transactions"))
	must(err)
	must(sender.Start())
	defer sender.Shutdown()
	for _, one := range read(topic) {
		sent, err := sender.SendMessageInTransaction(context.Background(), one)
		must(err)
		say(result(sent.SendResult))
	}
	time.Sleep(time.Duration(seconds) * time.Second)
}

func consume(namesrv, group, topic, expression, how string, count int) {
	options := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithMaxReconsumeTimes(1),
		consumer.WithConsumerOrder(how == "orderly"),
	}
	if how == "broadcast" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	receiver, err := rocketmq.NewPushConsumer(options...)
	must(err)
	var taken atomic.Int64
	done := make(chan struct{})
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	must(receiver.Subscribe(topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		refused := false
		for _, one := range messages {
			say(view(one))
			refused = refused || string(one.Body) == "bad"
			if taken.Add(1) == int64(count) {
				close(done)
			}
		}
		if refused {
			if how == "orderly" {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(receiver.Start())
	select {
	case <-done:
	case <-time.After(90 * time.Second):
	}
	time.Sleep(300 * time.Millisecond) // what was handled last is committed by the shutdown
	must(receiver.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	arguments := os.Args[2:]
	switch os.Args[1] {
	case "send":
		send(arguments[0], arguments[1], arguments[2])
	case "transactions":
		seconds, err := strconv.Atoi(arguments[2])
		must(err)
		transactions(arguments[0], arguments[1], seconds)
	case "consume":
		count, err := strconv.Atoi(arguments[5])
		must(err)
		consume(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], count)
	default:
		must(fmt.Errorf("no such command: %s", os.Args[1]))
	}
}
