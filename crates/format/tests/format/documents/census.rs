//! The tables of messages of a census.

use onefold_format::FormatError;
use onefold_format::census_message::{
    CensusReply, CensusReplyBody, CensusRequest, CensusRequestBody,
};

use super::{ALL, Trial, check, crc_without, table};
use crate::census::{self, CENSUS_REQUEST};

const DOCUMENT: &str = include_str!("../../../../../docs/format/census_message.md");

#[test]
fn census_request_document() {
    let rows = table(DOCUMENT, "Request");
    let encoded = |change: &dyn Fn(&mut CensusRequest)| {
        let mut request = census::requests().remove(1);
        change(&mut request);
        let mut bytes = request.encode();
        bytes[60..64].fill(0);
        bytes
    };
    let plain = encoded(&|_| {});
    let whole = |change: &dyn Fn(&mut CensusRequest)| Trial::Part(plain.clone(), encoded(change));
    let range = |change: &dyn Fn(&mut u64, &mut u64)| {
        whole(&|request| {
            if let CensusRequestBody::Blocks { from, to } = &mut request.body {
                change(&mut from.0, &mut to.0);
            }
        })
    };
    let sample = census::requests().remove(1).encode();
    let trials = vec![
        ("magic", Trial::Is(b"1FNQ".to_vec())),
        ("version", Trial::Is(vec![1, 0])),
        ("kind", Trial::Is(vec![2])),
        ("pool", whole(&|request| request.pool.0 = [0; 16])),
        ("group", whole(&|request| request.group.0 = ALL >> 1)),
        ("census", whole(&|request| request.census = ALL)),
        ("from", range(&|from, _| *from = 2)),
        ("to", range(&|_, to| *to += 7)),
        ("payload", Trial::Is(vec![0; 4])),
        ("checksum", Trial::Is(crc_without(&sample, 60..64))),
    ];
    check(&rows, &sample, trials, |at| {
        let mut bytes = sample.clone();
        bytes[at] |= 1;
        let checksum = crc_without(&bytes, 60..64);
        bytes[60..64].copy_from_slice(&checksum);
        let refused = CensusRequest::decode(&bytes);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}

#[test]
fn census_reply_document() {
    let rows = table(DOCUMENT, "Reply");
    let encoded = |change: &dyn Fn(&mut CensusReply)| {
        let mut reply = census::replies().remove(0);
        change(&mut reply);
        let mut bytes = reply.encode();
        bytes[28..32].fill(0);
        bytes[..32].to_vec()
    };
    let plain = encoded(&|_| {});
    let less = encoded(&|reply| {
        if let CensusReplyBody::Findings { has_more, .. } = &mut reply.body {
            *has_more = false;
        }
    });
    let fewer = encoded(&|reply| {
        if let CensusReplyBody::Findings { findings, .. } = &mut reply.body {
            findings.clear();
        }
    });
    let sample = census::replies().remove(0).encode();
    let trials = vec![
        ("magic", Trial::Is(b"1FNA".to_vec())),
        ("version", Trial::Is(vec![1, 0])),
        ("kind", Trial::Is(vec![5])),
        ("more", Trial::Whole(plain.clone(), less)),
        (
            "session",
            Trial::Part(plain.clone(), encoded(&|reply| reply.session = ALL)),
        ),
        (
            "request",
            Trial::Whole(
                plain.clone(),
                encoded(&|reply| reply.request = !CENSUS_REQUEST),
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
        let refused = CensusReply::decode(&bytes, CENSUS_REQUEST);
        matches!(refused, Err(FormatError::Reserved { .. }))
    });
}
