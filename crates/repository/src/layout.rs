//! The names of a repository's files. Files with other names are foreign: they are ignored, and stay.

use onefold_format::backup::pack::BLOCKS_PER_PACK;
use onefold_format::backup::recipe::NUMBER_END;
use rustix::fs::FileType;

/// The prefix of retired folders of leases that were released or have ended.
pub(crate) const RETIRED: &str = ".gone-";

/// A folder that some file systems have in their root.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

/// Paths of objects. ID stands for sixteen hexadecimal digits, N for a decimal number, and NN for two hexadecimal
/// digits.
const OBJECTS: [&str; 30] = [
    "repository",
    "reserve",
    "keys/repository",
    "keys/ID",
    "sources/ID/source",
    "sources/ID/condemned",
    "sources/ID/packs/source",
    "sources/ID/packs/NN/N.N",
    "sources/ID/tables/NN/N.N",
    "sources/ID/damage/ID",
    "sources/ID/recipes/source",
    "sources/ID/recipes/N",
    "sources/ID/backups/source",
    "sources/ID/backups/N",
    "sources/ID/forgotten/source",
    "sources/ID/forgotten/N",
    "sources/ID/closed/N",
    "sources/ID/labels/N",
    "sources/ID/protected/N",
    "sources/ID/users/source",
    "sources/ID/users/ID",
    "sources/ID/readers/N/ID/LEASE",
    "sources/ID/writer/ID/LEASE",
    "sources/ID/.gone-ID/LEASE",
    "sources/ID/.coming-ID/ID/LEASE",
    "sources/ID/.coming-ID/LEASE",
    ".coming-ID/keys/repository",
    ".coming-ID/keys/ID",
    ".coming-ID/trial/ID",
    ".coming-ID/trial/ID/ID",
];

/// Whether a path and type belong to an object, complete or incomplete, or to a folder of objects.
pub(crate) fn is_ours(path: &str, kind: FileType) -> bool {
    let parts: Vec<_> = path.split('/').collect();
    OBJECTS.iter().any(|object| {
        let object: Vec<_> = object.split('/').collect();
        let all = |parts: &[&str]| {
            let mut pairs = parts.iter().zip(&object);
            parts.len() <= object.len() && pairs.all(|(part, form)| has_form(part, form))
        };
        match (kind, &parts[..]) {
            (FileType::Directory, parts) => parts.len() < object.len() && all(parts),
            (FileType::RegularFile, [folders @ .., name]) => {
                parts.len() == object.len() && (all(&parts) || is_incomplete(name) && all(folders))
            }
            _ => false,
        }
    })
}

fn has_form(part: &str, form: &str) -> bool {
    match form {
        "ID" => hexadecimal(part).is_some(),
        "N" => decimal(part).is_some(),
        "NN" => part.len() == 2 && part.bytes().all(is_digit),
        "N.N" => {
            let numbers = part.split_once('.');
            numbers.is_some_and(|(a, b)| decimal(a).is_some() && decimal(b).is_some())
        }
        "LEASE" => is_of_lease(part),
        _ => match form.strip_suffix("ID") {
            Some(prefix) => part.strip_prefix(prefix).and_then(hexadecimal).is_some(),
            None => part == form,
        },
    }
}

/// Whether the folder of a lease may have a file with this name.
pub(crate) fn is_of_lease(name: &str) -> bool {
    matches!(name, "lease" | "sign" | "backup") || is_incomplete(name)
}

/// Whether this is the name of an incomplete object.
pub(crate) fn is_incomplete(name: &str) -> bool {
    let number = name.strip_prefix(crate::folder::INCOMPLETE);
    number.and_then(hexadecimal).is_some()
}

/// Parses a number of sixteen hexadecimal digits.
pub(crate) fn hexadecimal(name: &str) -> Option<u64> {
    let is_one = name.len() == 16 && name.bytes().all(is_digit);
    is_one.then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

/// Parses the number of a backup or a pack.
pub(crate) fn decimal(name: &str) -> Option<u64> {
    let number: u64 = name.parse().ok().filter(|number| *number < NUMBER_END)?;
    (number.to_string() == name).then_some(number)
}

/// The number and generation in the name of a pack or of its table.
pub(crate) fn number_and_generation(name: &str) -> Option<(u64, u32)> {
    let (number, generation) = name.split_once('.')?;
    let (number, generation) = (decimal(number)?, generation.parse().ok()?);
    (number < NUMBER_END / BLOCKS_PER_PACK).then_some((number, generation))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;
    use onefold_format::backup::{BackupNumber, ObjectName, Place, SourceId};

    #[test]
    fn every_object_has_a_name_of_ours() {
        let (id, backup) = (SourceId(0xab), BackupNumber(12));
        let places = [false, true].into_iter().flat_map(Place::all);
        let copies = places.map(|place| ObjectName::Copy(id, *place));
        let pack = ObjectName::Pack {
            source: id,
            number: 300,
            generation: 2,
        };
        let table = ObjectName::Table {
            source: id,
            number: 300,
            generation: 2,
        };
        let user = ObjectName::User {
            popular: id,
            source: id,
        };
        let names = [
            ObjectName::Repository,
            ObjectName::Reserve,
            ObjectName::RepositoryCopy,
            ObjectName::Key(7),
            ObjectName::Source(id),
            pack,
            table,
            ObjectName::Damage(id, 7),
            ObjectName::Recipe(id, backup),
            ObjectName::Manifest(id, backup),
            ObjectName::Lease(id, 7),
            ObjectName::Protection(id, backup),
            ObjectName::Condemned(id),
            ObjectName::Reader(id, backup, 7),
            ObjectName::Tombstone(id, backup),
            ObjectName::Closed(id, 3),
            ObjectName::Label(id, 4),
            ObjectName::UnderWay(id, 7),
            user,
        ];
        for name in names.into_iter().chain(copies) {
            let path = name.path();
            assert!(is_ours(&path, FileType::RegularFile), "{path}");
            for kind in [FileType::Directory, FileType::Symlink, FileType::Fifo] {
                assert!(!is_ours(&path, kind), "{path} {kind:?}");
            }
            let mut folder = path.as_str();
            while let Some((parent, _)) = folder.rsplit_once('/') {
                folder = parent;
                assert!(is_ours(folder, FileType::Directory), "{folder}");
                assert!(!is_ours(folder, FileType::RegularFile), "{folder}");
                assert!(!is_ours(folder, FileType::Symlink), "{folder}");
            }
        }
    }

    #[test]
    fn names_of_others_are_not_of_ours() {
        for (path, kind) in [
            (".DS_Store", FileType::RegularFile),
            (
                "sources/00000000000000ab/packs/Thumbs.db",
                FileType::RegularFile,
            ),
            ("sources/00000000000000ab/packs/03", FileType::RegularFile),
            ("sources/00000000000000AB/source", FileType::RegularFile),
            (
                "sources/00000000000000ab/backups/007",
                FileType::RegularFile,
            ),
            ("sources/00000000000000ab/backups/7", FileType::Directory),
            ("sources/00000000000000ab/@eaDir", FileType::Directory),
            (
                "sources/00000000000000ab/.incomplete-x",
                FileType::RegularFile,
            ),
            ("keys/.nfs0000000000000001", FileType::RegularFile),
            (".incomplete-0000000000000001", FileType::Directory),
        ] {
            assert!(!is_ours(path, kind), "{path}");
        }
        assert!(is_ours(
            ".incomplete-0000000000000001",
            FileType::RegularFile
        ));
    }
}
