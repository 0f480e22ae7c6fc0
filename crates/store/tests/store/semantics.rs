//! A volume is an array of bytes: any sequence of requests, compared with one.

use std::sync::Arc;

use onefold_store::{Blocking, CreateOptions, Extent, Volume};
use proptest::prelude::*;

use crate::common::{LITTLE_MEMORY, World, assert_clean, new_volume, pool_of, read_bytes};

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
    world: World,
    block_size: u64,
    expected: Vec<u8>,
    /// Bytes by which ranges are moved, so that they are not aligned to sectors.
    odd: u64,
}

impl Pair {
    fn new(block_size: u32) -> Self {
        let options = CreateOptions {
            block_size,
            ..pool_of(256 * u64::from(block_size))
        };
        let world = World::new(&options, LITTLE_MEMORY);
        let block_size = u64::from(block_size);
        new_volume(&world, "v", 32 * block_size);
        Self {
            world,
            block_size,
            expected: vec![0; 32 * block_size as usize],
            odd: 0,
        }
    }

    fn volume(&self) -> Arc<Volume> {
        self.world.volume("v").unwrap()
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
                let found = read_bytes(&volume, at, len);
                assert!(found == self.expected[at as usize..][..len as usize]);
            }
            Request::Resize { blocks } => {
                let size = blocks * self.block_size;
                self.world.resize_volume("v", size).unwrap();
                self.expected.resize(size as usize, 0);
            }
            Request::Flush => volume.flush().unwrap(),
            Request::Tick => self.world.tidy(true).unwrap(),
            Request::Reopen => {
                drop(volume);
                self.world.close().unwrap();
                self.world = World::on(self.world.engine.clone(), LITTLE_MEMORY);
            }
        }
    }

    /// All bytes, the counts, and the holes.
    fn compare(&self) {
        let volume = self.volume();
        let size = self.expected.len() as u64;
        assert_eq!(volume.size_bytes(), size);
        assert!(read_bytes(&volume, 0, size) == self.expected);
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
        assert_eq!(assert_clean(&self.world).mapped_blocks, data_blocks);
    }
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
