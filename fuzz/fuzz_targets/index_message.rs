//! Messages of the fingerprint index: arbitrary bytes, and payloads under a valid header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use onefold_format::index_message::{
    INDEX_MESSAGE_BYTES_MAX, INDEX_REPLY_HEADER_BYTES, INDEX_REQUEST_HEADER_BYTES, IndexReply, IndexReplyBody,
    IndexRequest, IndexRequestBody,
};
use onefold_format::{GroupId, PoolId, Shard};

/// The field of the request's checksum in a reply.
const REQUEST: u32 = 9;

fuzz_target!(|input: (u8, [u8; 2], u64, &[u8])| {
    let (kind, batch, number, bytes) = input;
    let _ = IndexRequest::decode(bytes);
    let _ = IndexReply::decode(bytes, REQUEST);
    let payload = &bytes[..bytes.len().min(INDEX_MESSAGE_BYTES_MAX - INDEX_REQUEST_HEADER_BYTES)];

    let request = IndexRequest {
        pool: PoolId([7; 16]),
        session: number,
        group: GroupId(1),
        shard: Shard(0),
        shards: 1,
        body: IndexRequestBody::Counts,
    };
    let mut message = request.encode();
    message[6] = kind;
    message[40..48].copy_from_slice(&number.to_le_bytes());
    message[52..54].copy_from_slice(&batch);
    message.extend(payload);
    seal(&mut message, INDEX_REQUEST_HEADER_BYTES, 56);
    if let Ok(read) = IndexRequest::decode(&message) {
        assert_eq!(read.encode(), message, "{read:?} has one form");
    }

    let reply = IndexReply {
        session: number,
        request: REQUEST,
        body: IndexReplyBody::Secured,
    };
    let mut message = reply.encode();
    (message[6], message[7]) = (kind, batch[0]);
    message.extend(payload);
    seal(&mut message, INDEX_REPLY_HEADER_BYTES, 20);
    if let Ok(read) = IndexReply::decode(&message, REQUEST) {
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
