//! The tables of messages of the fingerprint index.

use onefold_format::FormatError;
use onefold_format::index_message::{IndexReply, IndexReplyBody, IndexRequest, IndexRequestBody};

use super::{ALL, Trial, check, crc_without, table};
use crate::messages::{self, INDEX_REQUEST};

const DOCUMENT: &str = include_str!("../../../../../docs/format/index_message.md");

#[test]
fn index_request_document() {
    let rows = table(DOCUMENT, "Request");
    let encoded = |change: &dyn Fn(&mut IndexRequest)| {
        let mut request = messages::requests().remove(3);
        change(&mut request);
        let mut bytes = request.encode();
        bytes[60..64].fill(0);
        bytes[..64].to_vec()
    };
    let recall = |change: &dyn Fn(&mut u64, &mut bool)| {
        encoded(&|request| {
            if let IndexRequestBody::Recall {
                number, is_sealing, ..
            } = &mut request.body
            {
                change(number, is_sealing);
            }
        })
    };
    let plain = encoded(&|_| {});
    let whole = |change: &dyn Fn(&mut IndexRequest)| Trial::Part(plain.clone(), encoded(change));
    let sample = messages::requests().remove(3).encode();
    let trials = vec![
        ("magic", Trial::Is(b"1FIQ".to_vec())),
        ("version", Trial::Is(vec![1, 0])),
        ("kind", Trial::Is(vec![4])),
        ("pool", whole(&|request| request.pool.0 = [0; 16])),
        ("session", whole(&|request| request.session = ALL)),
        ("group", whole(&|request| request.group.0 = ALL >> 1)),
        (
            "number",
            Trial::Part(plain.clone(), recall(&|number, _| *number = ALL >> 1)),
        ),
        ("shard", whole(&|request| request.shard.0 = 2)),
        ("shards", whole(&|request| request.shards = 1024)),
        ("batch", Trial::Is(vec![2])),
        (
            "sealing",
            Trial::Part(plain.clone(), recall(&|_, is_sealing| *is_sealing = false)),
        ),
        ("payload", Trial::Is(vec![2, 0, 0, 0])),
        ("checksum", Trial::Is(crc_without(&sample, 60..64))),
    ];
    check(&rows, &sample[..64], trials, |at| {
        let mut bytes = sample.clone();
        bytes[at] |= 1;
        let checksum = crc_without(&bytes, 60..64);
        bytes[60..64].copy_from_slice(&checksum);
        let refused = IndexRequest::decode(&bytes);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn index_reply_document() {
    let rows = table(DOCUMENT, "Reply");
    let encoded = |change: &dyn Fn(&mut IndexReply)| {
        let mut reply = messages::replies().remove(0);
        change(&mut reply);
        let mut bytes = reply.encode();
        bytes[28..32].fill(0);
        bytes[..32].to_vec()
    };
    let plain = encoded(&|_| {});
    let less = encoded(&|reply| {
        if let IndexReplyBody::Answers { has_more, .. } = &mut reply.body {
            *has_more = false;
        }
    });
    let fewer = encoded(&|reply| {
        if let IndexReplyBody::Answers { answers, .. } = &mut reply.body {
            answers.clear();
        }
    });
    let sample = messages::replies().remove(0).encode();
    let trials = vec![
        ("magic", Trial::Is(b"1FIA".to_vec())),
        ("version", Trial::Is(vec![1, 0])),
        ("kind", Trial::Is(vec![1])),
        ("more", Trial::Whole(plain.clone(), less)),
        (
            "session",
            Trial::Part(plain.clone(), encoded(&|reply| reply.session = ALL)),
        ),
        (
            "request",
            Trial::Whole(
                plain.clone(),
                encoded(&|reply| reply.request = !INDEX_REQUEST),
            ),
        ),
        ("payload", Trial::Part(plain, fewer)),
        ("checksum", Trial::Is(crc_without(&sample, 28..32))),
    ];
    check(&rows, &sample[..32], trials, |at| {
        let mut bytes = sample.clone();
        bytes[at] |= 1;
        let checksum = crc_without(&bytes, 28..32);
        bytes[28..32].copy_from_slice(&checksum);
        let refused = IndexReply::decode(&bytes, INDEX_REQUEST);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn a_request_with_an_item_of_another_shard_is_refused() {
    for mut request in messages::requests() {
        let is_of_one_shard = matches!(
            request.body,
            IndexRequestBody::Recall { .. }
                | IndexRequestBody::Counts
                | IndexRequestBody::Secure(_)
                | IndexRequestBody::EndHolds { .. }
                | IndexRequestBody::Mark { .. }
        );
        request.shard.0 = 2;
        let decoded = IndexRequest::decode(&request.encode());
        assert_eq!(decoded.is_ok(), is_of_one_shard, "{request:?}");
    }
}
