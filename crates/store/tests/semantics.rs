//! A volume is an array of bytes: any sequence of requests, compared with one.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "how tests fail")]

use std::sync::Arc;

use onefold_engine::simulated::SimulatedEngine;
use onefold_store::{Blocking, CreateOptions, Extent, OpenOptions, Store, Volume, VolumeOptions};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;

#[derive(Debug, Clone)]
enum Request {
    Write { at: u64, len: u64, byte: u8 },
    Trim { at: u64, len: u64 },
    Zero { at: u64, len: u64 },
    Read { at: u64, len: u64 },
    Resize { blocks: u64 },
    Flush,
    Tick,
    Reopen,
}

/// Ranges as parts of the volume, in 1/4096: some land on blocks, most do not.
fn request() -> impl Strategy<Value = Request> {
    let at = prop_oneof![0..4096_u64, (0..64_u64).prop_map(|n| n * 64)];
    let len = prop_oneof![0..64_u64, 0..1024_u64];
    let byte = prop_oneof![Just(0_u8), any::<u8>()];
    prop_oneof![
        6 => (at.clone(), len.clone(), byte)
            .prop_map(|(at, len, byte)| Request::Write { at, len, byte }),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Request::Trim { at, len }),
        2 => (at.clone(), len.clone()).prop_map(|(at, len)| Request::Zero { at, len }),
        3 => (at, len).prop_map(|(at, len)| Request::Read { at, len }),
        1 => (1..40_u64).prop_map(|blocks| Request::Resize { blocks }),
        1 => Just(Request::Flush),
        1 => Just(Request::Tick),
        1 => Just(Request::Reopen),
    ]
}

struct Pair {
    engine: Arc<SimulatedEngine>,
    store: Arc<Store>,
    block_size: u64,
    expected: Vec<u8>,
    /// Bytes by which ranges are moved, so that they are not aligned to sectors.
    odd: u64,
}

impl Pair {
    fn new(block_size: u32) -> Self {
        let engine = Arc::new(SimulatedEngine::new(1));
        let options = CreateOptions {
            block_size,
            size_bytes: 256 * u64::from(block_size),
            log_bytes: 256 * KIB,
            ..CreateOptions::default()
        };
        Store::create(&*engine, &options).unwrap();
        let block_size = u64::from(block_size);
        let store = open(&engine);
        store
            .create_volume("v", &VolumeOptions::new(32 * block_size))
            .unwrap();
        Self {
            engine,
            store,
            block_size,
            expected: vec![0; 32 * block_size as usize],
            odd: 0,
        }
    }

    fn volume(&self) -> Arc<Volume> {
        self.store.volume("v").unwrap()
    }

    /// The place of a request's range in the present volume.
    fn range(&mut self, at: u64, len: u64) -> (u64, u64) {
        let size = self.expected.len() as u64;
        self.odd = (self.odd + 1) % 3;
        let start = (at * size / 4096 + self.odd).min(size);
        (start, (len * size / 4096 + self.odd).min(size - start))
    }

    fn serve(&mut self, request: &Request) {
        let volume = self.volume();
        match *request {
            Request::Write { at, len, byte } => {
                let (at, len) = self.range(at, len);
                let data: Vec<u8> = (0..len)
                    .map(|n| {
                        if byte == 0 {
                            0
                        } else {
                            byte.wrapping_add(n as u8)
                        }
                    })
                    .collect();
                volume.write(at, &data, Blocking::Yes).unwrap();
                self.expected[at as usize..][..len as usize].copy_from_slice(&data);
            }
            Request::Trim { at, len } => {
                let (at, len) = self.range(at, len);
                volume.trim(at, len, Blocking::Yes).unwrap();
                let first = at.next_multiple_of(self.block_size);
                let end = (at + len) / self.block_size * self.block_size;
                if first < end {
                    self.expected[first as usize..end as usize].fill(0);
                }
            }
            Request::Zero { at, len } => {
                let (at, len) = self.range(at, len);
                volume.write_zeroes(at, len, Blocking::Yes).unwrap();
                self.expected[at as usize..][..len as usize].fill(0);
            }
            Request::Read { at, len } => {
                let (at, len) = self.range(at, len);
                let mut found = vec![0xaa; len as usize];
                volume.read(at, &mut found, Blocking::Yes).unwrap();
                assert!(found == self.expected[at as usize..][..len as usize]);
            }
            Request::Resize { blocks } => {
                let size = blocks * self.block_size;
                self.store.resize_volume("v", size).unwrap();
                self.expected.resize(size as usize, 0);
            }
            Request::Flush => volume.flush().unwrap(),
            Request::Tick => self.store.tick().unwrap(),
            Request::Reopen => {
                drop(volume);
                self.store.close().unwrap();
                self.store = open(&self.engine);
            }
        }
    }

    /// All bytes, the counts, and the holes.
    fn compare(&self) {
        let volume = self.volume();
        let size = self.expected.len() as u64;
        assert_eq!(volume.size_bytes(), size);
        let mut found = vec![0xaa; size as usize];
        volume.read(0, &mut found, Blocking::Yes).unwrap();
        assert!(found == self.expected);
        let blocks = self.expected.chunks(self.block_size as usize);
        let has_data: Vec<bool> = blocks
            .map(|block| block.iter().any(|byte| *byte != 0))
            .collect();
        let data_blocks = has_data.iter().filter(|data| **data).count() as u64;
        assert_eq!(volume.logical_blocks(), data_blocks);
        let expected = has_data.chunk_by(|a, b| a == b).map(|run| Extent {
            len: run.len() as u64 * self.block_size,
            data: run[0],
        });
        let extents = volume.extents(0..size, 1000, Blocking::Yes).unwrap();
        assert_eq!(extents, expected.collect::<Vec<_>>());
        let report = self
            .store
            .check(false, &mut |finding| panic!("{finding:?}"));
        assert_eq!(report.unwrap().mapped_blocks, data_blocks);
    }
}

fn open(engine: &Arc<SimulatedEngine>) -> Arc<Store> {
    let options = OpenOptions {
        memory_bytes: 8192 * KIB,
        ..OpenOptions::default()
    };
    let engine: Arc<dyn onefold_engine::Engine> = Arc::<SimulatedEngine>::clone(engine);
    Store::open(engine, &options).unwrap().0
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_volume_is_an_array_of_bytes(
        block_size in prop_oneof![Just(4096_u32), Just(8192), Just(16384), Just(65536)],
        requests in prop::collection::vec(request(), 1..40),
    ) {
        let mut pair = Pair::new(block_size);
        for request in &requests {
            pair.serve(request);
        }
        pair.compare();
    }
}
