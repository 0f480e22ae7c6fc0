//! Messages of the fingerprint index: a specimen of each, and all others decode to the same values.

use onefold_format::index_message::{
    INDEX_MESSAGE_BYTES_MAX, INDEX_SECURED_MAX, IndexAnswer, IndexItem, IndexOperation, IndexReply,
    IndexReplyBody, IndexRequest, IndexRequestBody, IndexRow, LookupAnswer, PositionedAnswer,
    Refusal, RefusalCode, first_fingerprint, shard_of,
};
use onefold_format::units::{ID_END, PBA_END};
use onefold_format::{GroupId, Pba, PoolId, Shard};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::samples::POOL;

/// A request of each kind to the second of four shards.
pub(crate) fn requests() -> Vec<IndexRequest> {
    let fingerprint = |n: u8| {
        let mut fingerprint = [n; 16];
        fingerprint[0] = 0x40 | n;
        fingerprint
    };
    let (number, operation) = (0x0102_0304, IndexOperation::CountExisting);
    let items = || {
        let item = |position: u16| IndexItem {
            position,
            fingerprint: fingerprint(position as u8 + 1),
            pba: Pba(0xfe_0000_0001 + u64::from(position)),
        };
        [0, 3, 4].map(item).to_vec()
    };
    let batch = |operation| IndexRequestBody::Batch {
        number,
        operation,
        items: items(),
    };
    let bodies = vec![
        batch(IndexOperation::Increment),
        batch(IndexOperation::CountExisting),
        batch(IndexOperation::Decrement),
        IndexRequestBody::Recall {
            number,
            operation,
            is_sealing: true,
            from: 515,
        },
        IndexRequestBody::Lookup(vec![fingerprint(9), fingerprint(2)]),
        IndexRequestBody::Rows {
            from: fingerprint(5),
            max: 1000,
        },
        IndexRequestBody::Counts,
        IndexRequestBody::Secure(vec![16_384, 7]),
        IndexRequestBody::Hold {
            version: 0x2122_2324,
            fingerprints: vec![fingerprint(6)],
        },
        IndexRequestBody::EndHolds {
            version: 0x2122_2324,
            is_last: true,
        },
        IndexRequestBody::Mark {
            is_bad: true,
            blocks: vec![Pba(9), Pba(1 << 39)],
        },
    ];
    let request = |body| IndexRequest {
        pool: POOL,
        session: 0x1112_1314_1516,
        group: GroupId(77),
        shard: Shard(1),
        shards: 4,
        body,
    };
    bodies.into_iter().map(request).collect()
}

/// The checksum of the request that [`replies`] answer.
pub(crate) const INDEX_REQUEST: u32 = 0xa1a2_a3a4;

/// A reply of each kind.
pub(crate) fn replies() -> Vec<IndexReply> {
    let answers = [
        IndexAnswer::Inserted,
        IndexAnswer::Shared(Pba(0xfe_0000_0001)),
        IndexAnswer::Full,
        IndexAnswer::Remaining,
        IndexAnswer::Zero,
        IndexAnswer::Mismatch,
        IndexAnswer::Unknown,
        IndexAnswer::Held,
        IndexAnswer::SharedBad(Pba(0x11_1213_1415)),
    ];
    let positioned = |(position, answer)| PositionedAnswer { position, answer };
    let bodies = vec![
        IndexReplyBody::Answers {
            answers: (7..).zip(answers).map(positioned).collect(),
            has_more: true,
        },
        IndexReplyBody::Refused(Refusal {
            code: RefusalCode::Stale,
            detail: 0x0102_0304,
            text: "batch 3 is not the last one".to_owned(),
        }),
        IndexReplyBody::LookedUp(vec![
            LookupAnswer::Absent,
            LookupAnswer::Present(Pba(0xfe_0000_0001)),
            LookupAnswer::AbsentBySignature,
        ]),
        IndexReplyBody::Rows {
            rows: vec![IndexRow {
                fingerprint: [0x41; 16],
                pba: Pba(0xfe_0000_0001),
                references: 0xfd_0000_0002,
            }],
            has_more: false,
        },
        IndexReplyBody::Counts {
            unique: 1,
            shared: 2,
            references: 7,
        },
        IndexReplyBody::Secured,
        IndexReplyBody::Ended,
        IndexReplyBody::Marked,
    ];
    let reply = |body| IndexReply {
        session: 0x1112_1314_1516,
        request: INDEX_REQUEST,
        body,
    };
    bodies.into_iter().map(reply).collect()
}

proptest! {
    #[test]
    fn index_request(written in any_request(), flip: prop::sample::Index, bit in 0..8_u32) {
        let mut bytes = written.encode();
        prop_assert!(bytes.len() <= INDEX_MESSAGE_BYTES_MAX);
        prop_assert_eq!(IndexRequest::decode(&bytes), Ok(written));
        let at = flip.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(IndexRequest::decode(&bytes).is_err());
        prop_assert!(IndexRequest::decode(&bytes[..at]).is_err());
    }

    #[test]
    fn index_reply(written in any_reply(), flip: prop::sample::Index, bit in 0..8_u32) {
        let request = written.request;
        let mut bytes = written.encode();
        prop_assert!(bytes.len() <= INDEX_MESSAGE_BYTES_MAX);
        prop_assert_eq!(IndexReply::decode(&bytes, request), Ok(written));
        prop_assert!(IndexReply::decode(&bytes, request ^ 1).is_err());
        let at = flip.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(IndexReply::decode(&bytes, request).is_err());
        prop_assert!(IndexReply::decode(&bytes[..at], request).is_err());
    }

    #[test]
    fn shards_are_ranges_of_fingerprints(fingerprint: [u8; 16], log in 0..=10_u32) {
        let shards = 1 << log;
        let shard = shard_of(&fingerprint, shards);
        prop_assert!(shard.0 < shards);
        prop_assert!(first_fingerprint(shard, shards) <= fingerprint);
        if shard.0 + 1 < shards {
            prop_assert!(fingerprint < first_fingerprint(Shard(shard.0 + 1), shards));
        }
    }
}

fn index_fingerprint(shard: Shard, shards: u16, mut fingerprint: [u8; 16]) -> [u8; 16] {
    let first = first_fingerprint(shard, shards);
    let [low, high] = (u16::MAX / shards).to_le_bytes();
    fingerprint[0] = first[0] | fingerprint[0] & high;
    fingerprint[1] = first[1] | fingerprint[1] & low;
    fingerprint
}

fn index_operation() -> impl Strategy<Value = IndexOperation> {
    prop_oneof![
        Just(IndexOperation::Increment),
        Just(IndexOperation::CountExisting),
        Just(IndexOperation::Decrement),
    ]
}

fn index_request_bodies() -> impl Strategy<Value = IndexRequestBody> {
    let item = (any::<[u8; 16]>(), 1..PBA_END);
    let items = btree_map(any::<u16>(), item, 0..60).prop_map(|items| {
        let item = |(position, (fingerprint, pba))| IndexItem {
            position,
            fingerprint,
            pba: Pba(pba),
        };
        items.into_iter().map(item).collect::<Vec<_>>()
    });
    let number = || 1..ID_END;
    prop_oneof![
        (number(), index_operation(), items).prop_map(|(number, operation, items)| {
            IndexRequestBody::Batch {
                number,
                operation,
                items,
            }
        }),
        (number(), index_operation(), any::<bool>(), any::<u16>()).prop_map(
            |(number, operation, is_sealing, from)| IndexRequestBody::Recall {
                number,
                operation,
                is_sealing,
                from,
            }
        ),
        vec(any::<[u8; 16]>(), 0..60).prop_map(IndexRequestBody::Lookup),
        (any::<[u8; 16]>(), any::<u32>())
            .prop_map(|(from, max)| IndexRequestBody::Rows { from, max }),
        Just(IndexRequestBody::Counts),
        vec(0..=65_536u32, 0..=INDEX_SECURED_MAX).prop_map(IndexRequestBody::Secure),
        (number(), vec(any::<[u8; 16]>(), 0..60)).prop_map(|(version, fingerprints)| {
            IndexRequestBody::Hold {
                version,
                fingerprints,
            }
        }),
        (number(), any::<bool>())
            .prop_map(|(version, is_last)| IndexRequestBody::EndHolds { version, is_last }),
        (any::<bool>(), vec((1..PBA_END).prop_map(Pba), 0..60))
            .prop_map(|(is_bad, blocks)| IndexRequestBody::Mark { is_bad, blocks }),
    ]
}

fn any_request() -> impl Strategy<Value = IndexRequest> {
    let head = (
        any::<[u8; 16]>(),
        any::<u64>(),
        1..ID_END,
        any::<u16>(),
        0..=10_u32,
    );
    (head, index_request_bodies()).prop_map(|((pool, session, group, shard, log), mut body)| {
        let shards = 1 << log;
        let shard = Shard(shard % shards);
        let here = |fingerprint| index_fingerprint(shard, shards, fingerprint);
        match &mut body {
            IndexRequestBody::Batch { items, .. } => {
                for item in items {
                    item.fingerprint = here(item.fingerprint);
                }
            }
            IndexRequestBody::Lookup(fingerprints)
            | IndexRequestBody::Hold { fingerprints, .. } => {
                for fingerprint in fingerprints {
                    *fingerprint = here(*fingerprint);
                }
            }
            IndexRequestBody::Rows { from, .. } => *from = here(*from),
            _ => {}
        }
        IndexRequest {
            pool: PoolId(pool),
            session,
            group: GroupId(group),
            shard,
            shards,
            body,
        }
    })
}

fn any_reply() -> impl Strategy<Value = IndexReply> {
    let answer = prop_oneof![
        Just(IndexAnswer::Inserted),
        (1..PBA_END).prop_map(|pba| IndexAnswer::Shared(Pba(pba))),
        Just(IndexAnswer::Full),
        Just(IndexAnswer::Remaining),
        Just(IndexAnswer::Zero),
        Just(IndexAnswer::Mismatch),
        Just(IndexAnswer::Unknown),
        Just(IndexAnswer::Held),
        (1..PBA_END).prop_map(|pba| IndexAnswer::SharedBad(Pba(pba))),
    ];
    let answers = btree_map(any::<u16>(), answer, 0..60).prop_map(|answers| {
        let positioned = |(position, answer)| PositionedAnswer { position, answer };
        answers.into_iter().map(positioned).collect::<Vec<_>>()
    });
    let looked_up = prop_oneof![
        Just(LookupAnswer::Absent),
        (1..PBA_END).prop_map(|pba| LookupAnswer::Present(Pba(pba))),
        Just(LookupAnswer::AbsentBySignature),
    ];
    let rows = btree_map(any::<[u8; 16]>(), (1..PBA_END, 1..1_u64 << 40), 0..60);
    let rows = rows.prop_map(|rows| {
        let row = |(fingerprint, (pba, references))| IndexRow {
            fingerprint,
            pba: Pba(pba),
            references,
        };
        rows.into_iter().map(row).collect::<Vec<_>>()
    });
    let body = prop_oneof![
        (answers, any::<bool>())
            .prop_map(|(answers, has_more)| IndexReplyBody::Answers { answers, has_more }),
        (refusal_code(), any::<u64>(), ".{0,60}").prop_map(|(code, detail, text)| {
            IndexReplyBody::Refused(Refusal { code, detail, text })
        }),
        vec(looked_up, 0..60).prop_map(IndexReplyBody::LookedUp),
        (rows, any::<bool>()).prop_map(|(rows, has_more)| IndexReplyBody::Rows { rows, has_more }),
        any::<[u64; 3]>().prop_map(|[unique, shared, references]| IndexReplyBody::Counts {
            unique,
            shared,
            references
        }),
        Just(IndexReplyBody::Secured),
        Just(IndexReplyBody::Ended),
        Just(IndexReplyBody::Marked),
    ];
    (any::<u64>(), any::<u32>(), body).prop_map(|(session, request, body)| IndexReply {
        session,
        request,
        body,
    })
}

fn refusal_code() -> impl Strategy<Value = RefusalCode> {
    prop_oneof![
        Just(RefusalCode::Stale),
        Just(RefusalCode::Sealed),
        Just(RefusalCode::Forgotten),
        Just(RefusalCode::WrongShard),
        Just(RefusalCode::WrongSession),
        Just(RefusalCode::WrongPool),
        Just(RefusalCode::Malformed),
        Just(RefusalCode::Unready),
        Just(RefusalCode::NoRoom),
        Just(RefusalCode::Busy),
        Just(RefusalCode::Failed),
    ]
}
