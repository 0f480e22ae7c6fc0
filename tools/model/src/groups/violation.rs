//! The promises that a search may find broken.

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "`name` says what they mean")]
pub enum Violation {
    FreeNamed,
    FreeRead,
    WrongContent,
    WrongRead,
    WrongRow,
    WrongCount,
    NegativeReferences,
    UnknownReleased,
    UnknownClaimed,
    TwoKeepers,
    NoKeeper,
    LateWrite,
}

impl Violation {
    /// The promise, and what broke it.
    pub fn name(self) -> &'static str {
        match self {
            Violation::FreeNamed => "P3 a block that a group names is free",
            Violation::FreeRead => "P3 a block that a group reads is free in a group",
            Violation::WrongContent => "P5 an entry's block has another content than was written",
            Violation::WrongRead => "P5 a read returns another content than it resolved",
            Violation::WrongRow => "P2 a row's block has another content",
            Violation::WrongCount => "P4 a row differs from entries, dropped references and claims",
            Violation::NegativeReferences => "P4 a rebuild counts more claims than references",
            Violation::UnknownReleased => "P4 the index has no row of a released block",
            Violation::UnknownClaimed => "P4 the index has no row of a claimed block",
            Violation::TwoKeepers => "P6 a block is in two custodies",
            Violation::NoKeeper => "P6 a block is in no custody",
            Violation::LateWrite => "P7 a former owner's write lands in another group's extent",
        }
    }
}
