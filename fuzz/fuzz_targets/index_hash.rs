//! The hash index on its disk: checkpoints and frames of its log.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| onefold_index::hash::decode_anything(bytes));
