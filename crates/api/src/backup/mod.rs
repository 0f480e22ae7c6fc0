//! Requests about backups. The caller's own process carries them out at a repository, so they have no route on the
//! control socket ([decision 36](../../../docs/decisions/0036-backups-in-the-idle-class.md)).
//!
//! | file | contents |
//! | --- | --- |
//! | `request.rs` `requests.rs` | the traits [`RepositoryVerb`] and [`RepositoryRequest`]; the list of all verbs |
//! | `service.rs` | [`RepositoryService`]: an open repository, and the caller that observes the work |
//! | `name.rs` `origin.rs` | parts that several replies have |
//! | `clock.rs` | the warning about clocks that were set back |
//! | `options.rs` | options that several requests have |
//! | the others | one verb each, or verbs that belong together |

mod clock;
mod create;
mod diff;
mod disk;
mod forget;
mod init;
mod key;
mod list;
mod mount;
mod name;
mod options;
mod origin;
mod protect;
mod prune;
mod remove;
mod rename;
mod repair;
mod request;
mod requests;
mod restore;
mod service;
mod share;
mod show;
mod stat;
mod verify;

pub use create::{
    BackupCreate, BackupCreateReply, BaseFate, ChangedByReply, CreatedBackup, ImageFormat,
    NamePattern,
};
pub use diff::{BackupDiff, BackupDiffReply};
pub use disk::DiskSpec;
pub use forget::{BackupForget, BackupForgetReply, ForgottenBackup, RetentionRules};
pub use init::{BackupInit, BackupInitReply};
pub use key::{
    BackupKeyAdd, BackupKeyExport, BackupKeyList, BackupKeyRemove, BackupKeysReply, KeyNumber,
    ListedKey,
};
pub use list::{BackupList, BackupListReply, ListedBackup};
pub use mount::{BackupMount, BackupMountReply};
pub use name::BackupName;
pub use onefold_backup::ASIDE_BYTES;
pub use onefold_retention::Reason as RetentionReason;
pub use options::{LEVEL_DEFAULT, MEMORY_DEFAULT, parse_memory, threads};
pub use origin::OriginReply;
pub use protect::{BackupProtect, BackupProtectReply, BackupUnprotect};
pub use prune::{BackupPrune, BackupPruneReply, PrunedPopularReply, PrunedSourceReply};
pub use remove::{BackupRemove, BackupRemoveReply};
pub use rename::{BackupRename, BackupRenameReply};
pub use repair::{BackupRepair, BackupRepairReply, RepairedSource};
pub use request::{Planned, RepositoryRequest, RepositoryUse, RepositoryVerb};
pub use requests::{RepositoryVisitor, visit_repository_verbs};
pub use restore::{
    BackupRestore, BackupRestoreReply, RestoreLosses, RestoreLostRange, RestoreTarget,
    RestoredBytes,
};
pub use service::{Answer, Outcome, ReadNewKey, RepositoryService};
pub use share::{BackupShare, BackupShareReply, SharedDomain};
pub use show::{BackupShow, BackupShowReply};
pub use stat::{BackupStat, BackupStatPopular, BackupStatReply, BackupStatSource};
pub use verify::{BackupVerify, BackupVerifyReply};
