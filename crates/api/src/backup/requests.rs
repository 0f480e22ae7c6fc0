//! The list of all verbs of `onefold backup`.

use super::request::RepositoryVerb;
use super::{
    create, diff, forget, init, key, list, mount, protect, prune, remove, rename, repair, restore,
    share, show, stat, verify,
};

/// A visitor that is called once for each verb.
pub trait RepositoryVisitor {
    /// Visits one verb.
    fn verb<V: RepositoryVerb>(&mut self);
}

/// Passes every verb to a visitor. The OpenAPI document lists their schemas.
pub fn visit_repository_verbs(visitor: &mut impl RepositoryVisitor) {
    visitor.verb::<create::BackupCreate>();
    visitor.verb::<diff::BackupDiff>();
    visitor.verb::<init::BackupInit>();
    visitor.verb::<key::BackupKeyAdd>();
    visitor.verb::<key::BackupKeyExport>();
    visitor.verb::<key::BackupKeyList>();
    visitor.verb::<key::BackupKeyRemove>();
    visitor.verb::<list::BackupList>();
    visitor.verb::<forget::BackupForget>();
    visitor.verb::<mount::BackupMount>();
    visitor.verb::<protect::BackupProtect>();
    visitor.verb::<protect::BackupUnprotect>();
    visitor.verb::<prune::BackupPrune>();
    visitor.verb::<repair::BackupRepair>();
    visitor.verb::<share::BackupShare>();
    visitor.verb::<remove::BackupRemove>();
    visitor.verb::<rename::BackupRename>();
    visitor.verb::<restore::BackupRestore>();
    visitor.verb::<show::BackupShow>();
    visitor.verb::<stat::BackupStat>();
    visitor.verb::<verify::BackupVerify>();
}
