//! Sends, receives and ends transactions with Apache's client for Rust: `official ENDPOINT TOPIC GROUP ...`, with a topic and a group for each
//! of normal messages, ordered ones, delayed ones and transactions. Prints a line for everything that happens.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

type Outcome<T> = Result<T, Box<dyn Error>>;

const INVISIBLE: Duration = Duration::from_secs(30);
const DELAY_S: u64 = 5;
/// How long a call may take; servers refuse to wait for messages in less than five seconds.
const POLL: Duration = Duration::from_secs(10);

fn connection(endpoint: &str) -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(endpoint);
    option.set_enable_tls(false);
    option.set_timeout(Duration::from_secs(30));
    option.set_long_polling_timeout(POLL);
    option
}

/// Receives `count` messages with the tag of `expression` and acknowledges them; each call looks at one queue.
async fn receive(endpoint: &str, topic: &str, group: &str, expression: &str, count: usize) -> Outcome<()> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, connection(endpoint))?;
    consumer.start().await?;
    let wanted = FilterExpression::new(FilterType::Tag, expression);
    let mut received = 0;
    while received < count {
        for message in consumer.receive_with(topic, &wanted, 16, INVISIBLE).await? {
            println!(
                "received {} {} {} {} {} {} {}",
                topic,
                String::from_utf8_lossy(message.body()),
                message.tag().unwrap_or("-"),
                message.keys().first().map_or("-", String::as_str),
                message.properties().get("n").map_or("-", String::as_str),
                message.message_group().unwrap_or("-"),
                message.delivery_attempt(),
            );
            consumer.ack(&message).await?;
            received += 1;
        }
    }
    consumer.shutdown().await?;
    Ok(())
}

fn normal(topic: &str, number: usize) -> MessageBuilder {
    MessageBuilder::builder()
        .set_topic(topic)
        .set_tag("t")
        .set_keys(vec![format!("k{number}")])
        .set_properties(HashMap::from([("n", number.to_string())]))
        .set_body(format!("m{number}").into_bytes())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [endpoint, plain, plain_group, fifo, fifo_group, delay, delay_group, ending, ending_group] = &arguments[..] else {
        return Err("nine arguments".into());
    };
    let mut option = ProducerOption::default();
    option.set_topics(vec![plain, fifo, delay, ending]);
    let checker = Box::new(|_, message: rocketmq::model::message::MessageView| {
        println!("asked {}", String::from_utf8_lossy(message.body()));
        TransactionResolution::COMMIT
    });
    let mut producer = Producer::new_transaction_producer(option, connection(endpoint), checker)?;
    producer.start().await?;

    for number in 0..4 {
        println!("sent {}", producer.send(normal(plain, number).build()?).await?.message_id());
    }
    let together = (4..8).map(|number| normal(plain, number).build()).collect::<Result<Vec<_>, _>>()?;
    for receipt in producer.batch_send(together).await? {
        println!("sent {}", receipt.message_id());
    }
    receive(endpoint, plain, plain_group, "t", 8).await?;

    for number in 0..5 {
        for group in ["x", "y"] {
            producer.send(MessageBuilder::fifo_message_builder(fifo, format!("{group}{number}").into_bytes(), group).build()?).await?;
        }
    }
    receive(endpoint, fifo, fifo_group, "*", 10).await?;

    let due = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() + DELAY_S;
    producer.send(MessageBuilder::delay_message_builder(delay, b"later".to_vec(), due as i64).build()?).await?;
    receive(endpoint, delay, delay_group, "*", 1).await?;
    println!("early {}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() < due);

    let half = |body: &str| MessageBuilder::transaction_message_builder(ending, body.as_bytes().to_vec()).build();
    producer.send_transaction_message(half("kept")?).await?.commit().await?;
    producer.send_transaction_message(half("dropped")?).await?.rollback().await?;
    let _unfinished = producer.send_transaction_message(half("asked")?).await?;
    receive(endpoint, ending, ending_group, "*", 2).await?;
    producer.shutdown().await?;
    Ok(())
}
