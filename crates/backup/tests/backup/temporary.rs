//! A backup does not begin unless its temporary files have room.

use super::*;

/// A disk of which everything, or one block, may have changed. Reading it always fails.
struct Vast {
    one_block: bool,
}

/// The size of a disk whose rows take more than a pebibyte.
const VAST_BYTES: u64 = 1 << 57;

impl Disk for Vast {
    fn size_bytes(&self) -> u64 {
        VAST_BYTES
    }

    fn next_change(&mut self, start: u64) -> Result<Option<Change>> {
        let end = if self.one_block {
            BLOCK as u64
        } else {
            VAST_BYTES
        };
        Ok((start < end).then_some(Change {
            range: 0..end,
            has_data: true,
        }))
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<()> {
        Err(BackupError::Source("it was read".to_owned()))
    }
}

#[test]
fn a_backup_does_not_begin_where_its_temporary_files_might_not_fit() {
    let rig = Rig::new(&Access::Open);
    let writer = rig.repository.writer(rig.source.id, "test").unwrap();
    let folder = rig.folder.path();
    let attempt = |one_block, temporary: PathBuf| {
        let mut disks = [DiskToBackUp {
            writer: &writer,
            disk: Box::new(Vast { one_block }),
            parent: None,
            base: None,
            unix_seconds: 7,
            snapshot: String::new(),
        }];
        let options = Options {
            tags: Vec::new(),
            host: String::new(),
            level: 1,
            threads: 1,
            memory_bytes: 1 << 20,
            temporary,
        };
        let batch = create(&rig.repository, &mut disks, &options, None, &mut |_, _| {
            Ok(())
        });
        batch.and_then(|mut batch| batch.backups.remove(0))
    };
    let refused = attempt(false, folder.to_owned()).unwrap_err();
    let BackupError::NoRoom {
        folder: named,
        needed_bytes,
        free_bytes,
    } = &refused
    else {
        panic!("{refused}");
    };
    assert_eq!(
        (named.as_path(), *needed_bytes),
        (folder, VAST_BYTES / BLOCK as u64 * 48)
    );
    assert!(free_bytes < needed_bytes);
    // Only changed blocks count, and not the size of the disk.
    let read = attempt(true, folder.to_owned()).unwrap_err().to_string();
    assert!(read.contains("it was read"), "{read}");
    let nowhere = attempt(true, folder.join("nowhere"))
        .unwrap_err()
        .to_string();
    assert!(
        nowhere.contains("nowhere") && nowhere.contains("--temp"),
        "{nowhere}"
    );
}
