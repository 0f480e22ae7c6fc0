//! How many items a second one shard executes, for one caller and for many. The shard's daemon is the product; the callers
//! are threads of this process, each with a stream of its own.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use onefold_engine::rados::{RadosHost, RadosPlace};
use onefold_format::{GroupId, Pba};
use onefold_harness::pools::Ceph;
use onefold_harness::server::Product;
use onefold_index::Fingerprint;
use onefold_index::shard::Positioned;
use onefold_index::sharded::Sharded;
use onefold_rados::{Client, ConnectOptions};

/// Items in a call.
pub(crate) const ITEMS: u16 = 450;

/// Callers at a time.
pub(crate) const CALLERS: u64 = 16;

/// How long the calls last.
const TIME: Duration = Duration::from_secs(5);

const TIMEOUT: Duration = Duration::from_secs(10);

/// Numbers that no group of the pool has.
const FIRST_STREAM: u64 = 1 << 32;

/// The items of new contents that the only shard of a served pool executes in a second, all callers together.
pub(crate) fn items_per_second(
    ceph: &Ceph,
    pool: &Product,
    callers: u64,
    turn: u64,
) -> Result<f64> {
    let name = pool.place().name();
    let Some((_, name)) = name.rsplit_once('/') else {
        bail!("{name} is no pool in Ceph");
    };
    let client = Client::connect(&ConnectOptions {
        conf_file: Some(ceph.conf().to_owned()),
        ..ConnectOptions::default()
    })?;
    let place = RadosPlace {
        ceph_pool: ceph.ceph_pool().to_owned(),
        name: name.to_owned(),
        run: pool.place().directory().with_file_name("callers"),
    };
    std::fs::create_dir_all(&place.run)?;
    let host = RadosHost::open(&client, &place, Duration::from_secs(3600))?;
    let description = host.description();
    let cluster = Arc::new(host);
    let threads = (0..callers).map(|caller| {
        let stream = FIRST_STREAM + turn * CALLERS + caller;
        let shard = Sharded::new(
            cluster.clone(),
            description.identity,
            GroupId(stream),
            description.shards,
            TIMEOUT,
        )?;
        Ok(thread::spawn(move || call(&shard, stream)))
    });
    let threads = threads.collect::<Result<Vec<_>>>()?;
    let mut items = 0;
    for thread in threads {
        let executed = thread.join().ok().context("a caller panicked")?;
        items += executed?;
    }
    Ok(items as f64 / TIME.as_secs_f64())
}

/// Calls until the time is over. Returns how many items were executed.
fn call(shard: &Sharded, stream: u64) -> Result<u64> {
    let mut random = fastrand::Rng::with_seed(stream);
    let (start, mut executed) = (Instant::now(), 0);
    for number in 1.. {
        let items: Vec<Positioned> = (0..ITEMS)
            .map(|position| Positioned {
                position,
                fingerprint: Fingerprint(std::array::from_fn(|_| random.u8(..))),
                pba: Pba(random.u64(1..1 << 40)),
            })
            .collect();
        let answers = shard.increment(number, &items)?;
        if start.elapsed() > TIME {
            break;
        }
        executed += answers.len() as u64;
    }
    Ok(executed)
}
