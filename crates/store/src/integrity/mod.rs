//! Integrity: decayed blocks are found, repaired and reported; free space and index are compared
//! with the maps.

mod affected;
mod check;
mod known_bad;
mod losses;
mod scrub;

pub use affected::{AffectedPlace, BadBlockStat, BlockUse};
pub use check::{CheckReport, Finding};
pub(crate) use check::{Survey, SurveyKind, check, survey};
pub use scrub::{Scrub, ScrubReport, ScrubRun, ScrubStatus};
