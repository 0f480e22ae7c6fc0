//! Messages of a census: arbitrary bytes, and payloads under a valid header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::census_message::{
    CENSUS_REPLY_HEADER_BYTES, CENSUS_REQUEST_HEADER_BYTES, CensusReply, CensusReplyBody,
    CensusRequest, CensusRequestBody,
};
use onefold_format::{GroupId, PoolId};

/// The field of the request's checksum in a reply.
const REQUEST: u32 = 9;

/// Most bytes of a payload, which the longer header of the two leaves.
const PAYLOAD_MAX: usize = (64 << 10) - CENSUS_REQUEST_HEADER_BYTES;

fuzz_target!(|input: (u8, u8, [u64; 2], &[u8])| {
    let (kind, more, [from, to], bytes) = input;
    let _ = CensusRequest::decode(bytes);
    let _ = CensusReply::decode(bytes, REQUEST);

    let request = CensusRequest {
        pool: PoolId([7; 16]),
        group: GroupId(1),
        census: from,
        body: CensusRequestBody::End,
    };
    let mut message = request.encode();
    message[6] = kind;
    message[40..48].copy_from_slice(&from.to_le_bytes());
    message[48..56].copy_from_slice(&to.to_le_bytes());
    message.extend(&bytes[..bytes.len().min(PAYLOAD_MAX)]);
    seal(&mut message, CENSUS_REQUEST_HEADER_BYTES, 56);
    if let Ok(read) = CensusRequest::decode(&message) {
        assert_eq!(read.encode(), message, "{read:?} has one form");
    }

    let reply = CensusReply {
        session: from,
        request: REQUEST,
        body: CensusReplyBody::Begun,
    };
    let mut message = reply.encode();
    (message[6], message[7]) = (kind, more);
    message.extend(&bytes[..bytes.len().min(PAYLOAD_MAX)]);
    seal(&mut message, CENSUS_REPLY_HEADER_BYTES, 20);
    if let Ok(read) = CensusReply::decode(&message, REQUEST) {
        assert_eq!(read.encode(), message, "{read:?} has one form");
    }
});

/// Gives a message the length and the checksum that its bytes have.
fn seal(message: &mut [u8], header_bytes: usize, length_at: usize) {
    let payload = (message.len() - header_bytes) as u32;
    message[length_at..length_at + 4].copy_from_slice(&payload.to_le_bytes());
    let checksum = header_bytes - 4..header_bytes;
    message[checksum.clone()].fill(0);
    let sum = crc32c::crc32c(message);
    message[checksum].copy_from_slice(&sum.to_le_bytes());
}
