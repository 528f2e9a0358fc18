// modkit message|through -- measures the outbox of cf-modkit-db on the database that PGHOST,
// PGUSER ... name. Prints lines of a key and a figure for peers.sh.
//
// Handlers are leased, and the profile, processors and partitions are those of the crate's own
// benchmark for throughput; for latency it is the profile low_latency.
use modkit_db::migration_runner::run_migrations_for_testing;
use modkit_db::outbox::{
    outbox_migrations, Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxProfile,
    Partitions,
};
use modkit_db::{connect_db, ConnectOpts, Db};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::{collections::HashMap, env, sync::Arc, sync::Mutex, time::Duration, time::Instant};
use tokio::time::sleep;

fn setting(name: &str) -> usize {
    env::var(name).unwrap().parse().unwrap()
}

// 100 bytes: the number says which producer wrote it, and in which place.
fn payload(producer: usize, n: usize) -> Vec<u8> {
    let number = 100000000 + producer * 10000000 + n;
    format!("{{\"n\": {number}, \"text\": \"{}\"}}", "x".repeat(72)).into_bytes()
}

#[derive(Default)]
struct Reader {
    seen: AtomicU64,
    at: AtomicI64, // when, in nanoseconds since the start
    start: Mutex<Option<Instant>>,
    last: Mutex<HashMap<(i64, usize), usize>>,
}

struct Handler(Arc<Reader>);

#[async_trait::async_trait]
impl LeasedHandler for Handler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let now = self.0.start.lock().unwrap().map_or(0, |start| start.elapsed().as_nanos());
        self.0.at.store(now as i64, SeqCst);
        while let Some(m) = batch.next_msg() {
            let number: usize = std::str::from_utf8(&m.payload[6..15]).unwrap().parse().unwrap();
            let (producer, own) = ((number - 100000000) / 10000000, number % 10000000);
            let before = self.0.last.lock().unwrap().insert((m.partition_id, producer), own);
            if before.is_some_and(|before| before >= own) {
                eprintln!("modkit: message {own} of producer {producer} after {before:?}");
                std::process::exit(1);
            }
            batch.ack();
            self.0.seen.fetch_add(1, SeqCst);
        }
        HandlerResult::Success
    }
}

async fn put(outbox: &Arc<Outbox>, db: &Db, producer: usize, from: usize, count: usize) {
    let inner = Arc::clone(outbox);
    let (_, result) = outbox
        .transaction(db.clone(), move |tx| {
            Box::pin(async move {
                let messages: Vec<_> = (from..from + count)
                    .map(|n| EnqueueMessage {
                        partition: (n % 64) as u32,
                        payload: payload(producer, n),
                        payload_type: "bench",
                    })
                    .collect();
                inner.enqueue_batch(tx, "bench", &messages).await?;
                Ok(())
            })
        })
        .await;
    result.unwrap();
}

async fn through(
    key: &str, outbox: &Arc<Outbox>, db: &Db, reader: &Reader,
    producers: usize, count: usize, each: usize,
) {
    reader.last.lock().unwrap().clear();
    reader.seen.store(0, SeqCst);
    let began = Instant::now();
    let tasks: Vec<_> = (0..producers)
        .map(|producer| {
            let (outbox, db) = (Arc::clone(outbox), db.clone());
            tokio::spawn(async move {
                for step in 0..count / producers / each {
                    put(&outbox, &db, producer, step * each, each).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    while reader.seen.load(SeqCst) < count as u64 {
        sleep(Duration::from_micros(500)).await;
    }
    println!("{key} {}", count as f64 / began.elapsed().as_secs_f64());
}

#[tokio::main]
async fn main() {
    let row = env::args().nth(1).unwrap();
    let var = |name| env::var(name).unwrap();
    let url = format!("postgres://{}@localhost:{}/{}?host={}", var("PGUSER"), var("PGPORT"),
        var("PGDATABASE"), var("PGHOST"));
    let options = ConnectOpts { max_conns: Some(38), ..Default::default() };
    let db = connect_db(&url, options).await.unwrap();
    run_migrations_for_testing(&db, outbox_migrations()).await.unwrap();
    let reader = Arc::new(Reader::default());
    let quick = row == "message";
    let profile = if quick { OutboxProfile::low_latency() } else { OutboxProfile::high_throughput() };
    let handle = Outbox::builder(db.clone()).profile(profile).processors(8).maintenance(2, 1)
        .queue("bench", Partitions::of(64)).leased(Handler(Arc::clone(&reader))).done()
        .start().await.unwrap();
    let outbox = Arc::clone(handle.outbox());
    if quick {
        let (samples, start) = (setting("PEERS_SAMPLES"), Instant::now());
        let mut ms = Vec::new();
        *reader.start.lock().unwrap() = Some(start);
        for n in 0..samples + 10 { // the first ten warm up
            sleep(Duration::from_millis(20 + (n as u64 * 7) % 20)).await;
            let began = start.elapsed().as_nanos() as i64;
            put(&outbox, &db, 0, n, 1).await;
            while reader.seen.load(SeqCst) <= n as u64 {
                sleep(Duration::from_micros(100)).await;
            }
            ms.push((reader.at.load(SeqCst) - began) as f64 / 1e6);
        }
        let mut ms = ms.split_off(10);
        ms.sort_by(f64::total_cmp);
        println!("message {}", ms[samples / 2]);
        println!("message-p99 {}", ms[samples * 99 / 100]);
    } else {
        let jobs = setting("PEERS_JOBS");
        through("through-1", &outbox, &db, &reader, 16, jobs / 10, 1).await;
        through("through-100", &outbox, &db, &reader, 2, jobs, 100).await;
    }
    handle.stop().await;
}
