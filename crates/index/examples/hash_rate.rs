//! How many bytes of blocks a core hashes in a second, one block at a time and several at once.
//!
//! Prints one line for each block size. The two ways take turns, and the quickest rounds are
//! compared: on a shared machine these are the undisturbed rounds.

use std::hint::black_box;
use std::time::Instant;

use onefold_index::{Fingerprint, Key};

/// A batch of the finder's is read in pieces of about this size.
const BYTES: usize = 4 << 20;
const ROUNDS: usize = 400;

fn main() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut blocks = vec![0; BYTES];
    random.fill(&mut blocks);
    let key = Key::derive(&[7; 32], 1);
    println!("block   one at a time   several at once   ratio");
    for block_size in [4096, 8192, 16384, 65536] {
        let mut seconds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let one = blocks
                .chunks(block_size)
                .map(|block| key.fingerprint(block));
            let one: Vec<Fingerprint> = one.collect();
            seconds[0].push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let mut several = Vec::new();
            key.fingerprints(black_box(&blocks), block_size, &mut several);
            seconds[1].push(start.elapsed().as_secs_f64());
            assert!(one == several);
        }
        let [one, several] = seconds.map(|times| {
            let quickest = times.into_iter().fold(f64::INFINITY, f64::min);
            BYTES as f64 / quickest / 1e9
        });
        let ratio = several / one;
        println!("{block_size:>5} {one:>9.2} GB/s {several:>12.2} GB/s {ratio:>10.2}");
    }
}
