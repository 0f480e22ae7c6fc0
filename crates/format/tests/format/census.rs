//! Messages of a census: a specimen of each, and all others decode to the same values.

use std::ops::Range;

use onefold_format::census_message::{
    BlockRun, BlockUse, CENSUS_FINGERPRINTS_MAX, CENSUS_RANGES_MAX, CENSUS_RUNS_MAX, CensusRefusal,
    CensusReply, CensusReplyBody, CensusRequest, CensusRequestBody,
};
use onefold_format::units::{ID_END, PBA_END};
use onefold_format::{FormatError, GroupId, Pba, PoolId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::samples::POOL;

/// The checksum of the request to which the specimens reply.
pub(crate) const CENSUS_REQUEST: u32 = 0xb1b2_b3b4;

/// A request of each kind.
pub(crate) fn requests() -> Vec<CensusRequest> {
    let bodies = [
        CensusRequestBody::Begin {
            pool_end: Pba(0x0102_0000),
        },
        CensusRequestBody::Blocks {
            from: Pba(0xfe_0000_0001),
            to: Pba(0xfe_0001_0000),
        },
        CensusRequestBody::Findings { from: 515 },
        CensusRequestBody::End,
        CensusRequestBody::BeginRebuild {
            pool_end: Pba(0x0102_0000),
        },
        CensusRequestBody::Decide {
            from: Pba(0xfe_0000_0001),
            to: Pba(0xfe_0001_0000),
            granted: vec![
                0xfe_0000_0001..0xfe_0000_0003,
                0xfe_0000_ffff..0xfe_0001_0000,
            ],
        },
        CensusRequestBody::Settle,
        CensusRequestBody::Fingerprints(vec![1..2, 300..600]),
    ];
    let request = |body| CensusRequest {
        pool: POOL,
        group: GroupId(0x4d),
        census: 0x3132_3334_3536_3738,
        body,
    };
    bodies.map(request).to_vec()
}

/// A reply of each kind.
pub(crate) fn replies() -> Vec<CensusReply> {
    let run = |first, count, is_free, is_owned, references| BlockRun {
        first: Pba(first),
        count,
        usage: BlockUse {
            is_free,
            is_owned,
            references,
            is_publishing: first == 0xfe_0000_0001,
            is_releasing: first == 0xfe_0000_0003,
        },
    };
    let bodies = vec![
        CensusReplyBody::Findings {
            mapped_blocks: 0x0203_0405,
            pages_read: 7,
            findings: vec!["PBA 7: claimed too often".to_owned(), "é".to_owned()],
            has_more: true,
        },
        CensusReplyBody::Refused {
            reason: CensusRefusal::Busy,
            text: "another one is in progress".to_owned(),
        },
        CensusReplyBody::UnderWay,
        CensusReplyBody::Begun,
        CensusReplyBody::Blocks {
            next: Pba(0xfe_0001_0000),
            runs: vec![
                run(16_384, 300, true, false, None),
                run(16_684, 1, false, true, None),
                run(0xfe_0000_0001, 2, false, false, Some(0)),
                run(0xfe_0000_0003, 1, true, true, Some(70_000)),
            ],
        },
        CensusReplyBody::Ended,
        CensusReplyBody::Decided,
        CensusReplyBody::Settled {
            last_number: 0x0304_0506,
        },
        CensusReplyBody::Fingerprints {
            next: Pba(0xfe_0001_0000),
            found: vec![(Pba(1), [0x21; 16]), (Pba(0xfe_0000_0001), [0x22; 16])],
        },
    ];
    let reply = |body| CensusReply {
        session: 0x1112_1314_1516,
        request: CENSUS_REQUEST,
        body,
    };
    bodies.into_iter().map(reply).collect()
}

#[test]
fn the_longest_runs_fit_a_message() {
    let usage = BlockUse {
        is_free: true,
        is_owned: true,
        references: Some(u64::MAX),
        is_publishing: true,
        is_releasing: true,
    };
    let most = CENSUS_RUNS_MAX as u64;
    let far = PBA_END / most;
    let runs = (1..=most).map(|n| BlockRun {
        first: Pba(n * far - far / 2),
        count: far / 2,
        usage,
    });
    let reply = CensusReply {
        session: u64::MAX,
        request: CENSUS_REQUEST,
        body: CensusReplyBody::Blocks {
            next: Pba(PBA_END),
            runs: runs.collect(),
        },
    };
    assert_eq!(
        CensusReply::decode(&reply.encode(), CENSUS_REQUEST),
        Ok(reply)
    );
}

#[test]
fn the_most_ranges_and_fingerprints_fit_a_message() {
    let most = CENSUS_RANGES_MAX as u64;
    let far = PBA_END / most;
    let request = CensusRequest {
        body: CensusRequestBody::Decide {
            from: Pba(0),
            to: Pba(PBA_END),
            granted: (0..most).map(|n| n * far..n * far + far / 2).collect(),
        },
        ..requests().remove(0)
    };
    assert_eq!(CensusRequest::decode(&request.encode()), Ok(request));
    let most = CENSUS_FINGERPRINTS_MAX as u64;
    let reply = CensusReply {
        session: 1,
        request: CENSUS_REQUEST,
        body: CensusReplyBody::Fingerprints {
            next: Pba(PBA_END),
            found: (0..most).map(|n| (Pba(n), [n as u8; 16])).collect(),
        },
    };
    assert_eq!(
        CensusReply::decode(&reply.encode(), CENSUS_REQUEST),
        Ok(reply)
    );
}

#[test]
fn requests_for_no_fingerprints_or_too_many_are_refused() {
    let most = CENSUS_FINGERPRINTS_MAX as u64;
    for blocks in [vec![], vec![0..1, 1..most + 1], vec![5..6, 10..10 + most]] {
        let request = CensusRequest {
            body: CensusRequestBody::Fingerprints(blocks),
            ..requests().remove(0)
        };
        let decoded = CensusRequest::decode(&request.encode());
        assert!(
            matches!(decoded, Err(FormatError::Field { .. })),
            "{decoded:?}"
        );
    }
}

#[test]
fn ranges_that_no_sender_asks_for_are_refused() {
    for (from, to) in [(5, 5), (6, 5), (0, PBA_END + 1)] {
        let request = CensusRequest {
            body: CensusRequestBody::Blocks {
                from: Pba(from),
                to: Pba(to),
            },
            ..requests().remove(0)
        };
        let decoded = CensusRequest::decode(&request.encode());
        assert!(
            matches!(decoded, Err(FormatError::Field { .. })),
            "{decoded:?}"
        );
    }
}

proptest! {
    #[test]
    fn census_request(written in any_request(), flip: prop::sample::Index, bit in 0..8_u32) {
        let mut bytes = written.encode();
        prop_assert_eq!(CensusRequest::decode(&bytes), Ok(written));
        let at = flip.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(CensusRequest::decode(&bytes).is_err());
        prop_assert!(CensusRequest::decode(&bytes[..at]).is_err());
    }

    #[test]
    fn census_reply(written in any_reply(), flip: prop::sample::Index, bit in 0..8_u32) {
        let request = written.request;
        let mut bytes = written.encode();
        prop_assert_eq!(CensusReply::decode(&bytes, request), Ok(written));
        prop_assert!(CensusReply::decode(&bytes, request ^ 1).is_err());
        let at = flip.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(CensusReply::decode(&bytes, request).is_err());
        prop_assert!(CensusReply::decode(&bytes[..at], request).is_err());
    }
}

fn any_request() -> impl Strategy<Value = CensusRequest> {
    let body = prop_oneof![
        (0..=PBA_END).prop_map(|end| CensusRequestBody::Begin { pool_end: Pba(end) }),
        (0..PBA_END, 1..=PBA_END).prop_filter_map("an empty range", |(from, to)| {
            (from < to).then_some(CensusRequestBody::Blocks {
                from: Pba(from),
                to: Pba(to),
            })
        }),
        any::<u64>().prop_map(|from| CensusRequestBody::Findings { from }),
        Just(CensusRequestBody::End),
        (0..=PBA_END).prop_map(|end| CensusRequestBody::BeginRebuild { pool_end: Pba(end) }),
        any_ranges(1 << 20).prop_filter_map("an empty range", |granted| {
            let (from, to) = (granted.first()?.start, granted.last()?.end);
            let (from, to) = (Pba(from), Pba(to));
            Some(CensusRequestBody::Decide { from, to, granted })
        }),
        Just(CensusRequestBody::Settle),
        any_ranges(40).prop_filter_map("no blocks", |blocks| {
            (!blocks.is_empty()).then_some(CensusRequestBody::Fingerprints(blocks))
        }),
    ];
    (any::<[u8; 16]>(), 1..ID_END, any::<u64>(), body).prop_map(|(pool, group, census, body)| {
        CensusRequest {
            pool: PoolId(pool),
            group: GroupId(group),
            census,
            body,
        }
    })
}

fn any_ranges(len_max: u64) -> impl Strategy<Value = Vec<Range<u64>>> {
    vec((0..1_u64 << 30, 1..len_max), 0..60).prop_map(|ranges| {
        let mut at = 0;
        let range = |(gap, len)| {
            let start = at + gap;
            at = start + len;
            start..at
        };
        ranges.into_iter().map(range).collect()
    })
}

fn any_runs() -> impl Strategy<Value = Vec<BlockRun>> {
    let usage = (any::<[bool; 4]>(), any::<Option<u64>>())
        .prop_map(|(flags, references)| {
            let [is_free, is_owned, is_publishing, is_releasing] = flags;
            BlockUse {
                is_free,
                is_owned,
                references,
                is_publishing,
                is_releasing,
            }
        })
        .prop_filter("no use", |usage| !usage.is_none());
    vec((0..1_u64 << 30, 1..1_u64 << 30, usage), 0..60).prop_map(|runs| {
        let mut at = 0;
        let run = |(gap, count, usage)| {
            let first = Pba(at + gap);
            at = first.0 + count;
            BlockRun {
                first,
                count,
                usage,
            }
        };
        runs.into_iter().map(run).collect()
    })
}

fn any_reply() -> impl Strategy<Value = CensusReply> {
    let refusal = prop_oneof![
        Just(CensusRefusal::Malformed),
        Just(CensusRefusal::Busy),
        Just(CensusRefusal::Ended),
        Just(CensusRefusal::Failed),
    ];
    let body = prop_oneof![
        (refusal, ".{0,80}").prop_map(|(reason, text)| CensusReplyBody::Refused { reason, text }),
        Just(CensusReplyBody::UnderWay),
        Just(CensusReplyBody::Begun),
        Just(CensusReplyBody::Ended),
        Just(CensusReplyBody::Decided),
        any::<u64>().prop_map(|last_number| CensusReplyBody::Settled { last_number }),
        (
            any::<u64>(),
            vec((1..1_u64 << 30, any::<[u8; 16]>()), 0..60)
        )
            .prop_map(|(next, found)| {
                let mut at = 0;
                let found = found.into_iter().map(|(gap, fingerprint)| {
                    at += gap;
                    (Pba(at), fingerprint)
                });
                let found = found.collect();
                CensusReplyBody::Fingerprints {
                    next: Pba(next),
                    found,
                }
            }),
        (any::<u64>(), any_runs()).prop_map(|(next, runs)| CensusReplyBody::Blocks {
            next: Pba(next),
            runs,
        }),
        (
            any::<u64>(),
            any::<u64>(),
            vec(".{0,80}", 0..9),
            any::<bool>()
        )
            .prop_map(|(mapped_blocks, pages_read, findings, has_more)| {
                CensusReplyBody::Findings {
                    mapped_blocks,
                    pages_read,
                    findings,
                    has_more,
                }
            }),
    ];
    (any::<u64>(), any::<u32>(), body).prop_map(|(session, request, body)| CensusReply {
        session,
        request,
        body,
    })
}
