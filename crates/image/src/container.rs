//! Files that hold a disk in a special format, recognised by their first bytes.
//!
//! Copied byte for byte they would make a volume that no guest can boot. A guest can write the same
//! bytes to the start of its disk, so this is only ever a reason to refuse, or to ask: it never
//! determines how a file is read.

use std::fmt;

/// The number of first bytes that [`Container::of`] reads.
pub const HEAD_BYTES: usize = 512;

/// The kind of a file that does not hold a disk's plain bytes.
///
/// A command has `FILE` in place of the file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// A foreign format of disk images.
    Image {
        /// The format's display name.
        name: &'static str,
        /// The command that writes the disk to a file.
        command: &'static str,
    },
    /// The qcow2 format, which is read if the user names it.
    Qcow2,
    /// A compressed file.
    Compressed {
        /// The compression's display name.
        name: &'static str,
        /// The command that writes its content to a file.
        command: &'static str,
    },
    /// An archive of files.
    Archive {
        /// The archive's display name.
        name: &'static str,
        /// The command that unpacks it.
        command: &'static str,
    },
}

const fn image(name: &'static str, command: &'static str) -> Container {
    Container::Image { name, command }
}

const fn compressed(name: &'static str, command: &'static str) -> Container {
    Container::Compressed { name, command }
}

const fn archive(name: &'static str, command: &'static str) -> Container {
    Container::Archive { name, command }
}

const QCOW1: Container = image(
    "qcow version 1",
    "qemu-img convert -f qcow -O raw FILE DISK.raw",
);
const VMDK: Container = image("VMDK", "qemu-img convert -f vmdk -O raw FILE DISK.raw");
const VDI: Container = image("VDI", "qemu-img convert -f vdi -O raw FILE DISK.raw");
const VHDX: Container = image("VHDX", "qemu-img convert -f vhdx -O raw FILE DISK.raw");
const VHD: Container = image("VHD", "qemu-img convert -f vpc -O raw FILE DISK.raw");
const QED: Container = image("QED", "qemu-img convert -f qed -O raw FILE DISK.raw");
const PARALLELS: Container = image(
    "Parallels",
    "qemu-img convert -f parallels -O raw FILE DISK.raw",
);
const EWF: Container = image("EWF (E01)", "ewfexport -f raw -t DISK FILE");
const TAR: Container = archive("tar (as OVA files are)", "tar -xf FILE");

/// Offset of the bytes, the bytes, and the format that has them. The first match counts.
const MAGICS: [(usize, &[u8], Container); 28] = [
    (0, b"QFI\xfb\0\0\0\x01", QCOW1),
    (0, &crate::QCOW2_MAGIC, Container::Qcow2),
    (0, b"KDMV", VMDK),
    (0, b"COWD", VMDK),
    (0, b"# Disk DescriptorFile", VMDK),
    (64, &[0x7f, 0x10, 0xda, 0xbe], VDI),
    (0, b"vhdxfile", VHDX),
    (0, b"conectix", VHD),
    (0, b"QED\0", QED),
    (0, b"WithoutFreeSpace", PARALLELS),
    (0, b"WithouFreSpacExt", PARALLELS),
    (0, b"EVF\x09\r\n\xff\0", EWF),
    (0, b"EVF2\r\n\x81\0", EWF),
    (
        0,
        &[0x3a, 0xff, 0x26, 0xed],
        image("Android sparse", "simg2img FILE DISK.raw"),
    ),
    (
        0,
        &[0x1f, 0x8b, 8],
        compressed("gzip", "gzip -dc FILE > DISK"),
    ),
    (0, b"\xfd7zXZ\0", compressed("xz", "xz -dc FILE > DISK")),
    (
        0,
        &[0x28, 0xb5, 0x2f, 0xfd],
        compressed("zstd", "zstd -dc FILE > DISK"),
    ),
    (
        0,
        &[0x04, 0x22, 0x4d, 0x18],
        compressed("LZ4", "lz4 -dc FILE > DISK"),
    ),
    (0, b"LZIP", compressed("lzip", "lzip -dc FILE > DISK")),
    (
        0,
        b"\x89LZO\0\r\n\x1a\n",
        compressed("lzop", "lzop -dc FILE > DISK"),
    ),
    (
        0,
        &[0x1f, 0x9d],
        compressed("compress", "gzip -dc FILE > DISK"),
    ),
    (0, b"PK\x03\x04", archive("ZIP", "unzip FILE")),
    (0, b"7z\xbc\xaf\x27\x1c", archive("7z", "7z x FILE")),
    (0, b"Rar!\x1a\x07", archive("RAR", "unrar x FILE")),
    (
        0,
        b"VMA\0",
        archive("VMA (of Proxmox)", "vma extract FILE DIRECTORY"),
    ),
    (
        0,
        b"MSWIM\0\0\0",
        archive("WIM", "wimlib-imagex apply FILE DIRECTORY"),
    ),
    (257, b"ustar\0", TAR),
    (257, b"ustar ", TAR),
];

/// The block magics after `BZh` and the block size: of data, and of the end.
const BZIP2_BLOCKS: [&[u8]; 2] = [
    &[0x31, 0x41, 0x59, 0x26, 0x53, 0x59],
    &[0x17, 0x72, 0x45, 0x38, 0x50, 0x90],
];

impl Container {
    /// The format of a file that begins with these bytes; [`HEAD_BYTES`] are enough, and a shorter
    /// file may have fewer.
    #[must_use]
    pub fn of(head: &[u8]) -> Option<Container> {
        let stands_at = |at: usize, magic: &[u8]| {
            let rest = head.get(at..);
            rest.is_some_and(|rest| rest.starts_with(magic))
        };
        let known = MAGICS.iter().find(|(at, magic, _)| stands_at(*at, magic));
        if let Some((.., container)) = known {
            return Some(*container);
        }
        let is_bzip2 = stands_at(0, b"BZh")
            && head
                .get(3)
                .is_some_and(|level| (b'1'..=b'9').contains(level))
            && BZIP2_BLOCKS.iter().any(|magic| stands_at(4, magic));
        is_bzip2.then_some(compressed("bzip2", "bzip2 -dc FILE > DISK"))
    }

    /// The format by the last 512 bytes of a file: a VHD of fixed size is marked only there.
    #[must_use]
    pub fn of_footer(foot: &[u8]) -> Option<Container> {
        foot.starts_with(b"conectix").then_some(VHD)
    }

    /// How to import the disk inside; messages call the file `shown`.
    #[must_use]
    pub fn advice(&self, shown: &str) -> String {
        let (doing, command, then) = match self {
            Container::Qcow2 => {
                return "import the disk inside it with --image-format qcow2".to_owned();
            }
            Container::Image { command, .. } => ("convert", command, "import that"),
            Container::Compressed { command, .. } => ("decompress", command, "import that"),
            Container::Archive { command, .. } => ("unpack", command, "import the disk in it"),
        };
        let command = command.replace("FILE", shown);
        format!("{doing} it with '{command}' and {then}")
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Container::Image { name, .. } => write!(f, "{name} image"),
            Container::Qcow2 => f.write_str("qcow2 image"),
            Container::Compressed { name, .. } => write!(f, "{name}-compressed file"),
            Container::Archive { name, .. } => write!(f, "{name} archive"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_by_its_magic_and_by_nothing_less() {
        for (at, magic, container) in MAGICS {
            let mut head = vec![0; at];
            head.extend_from_slice(magic);
            assert_eq!(Container::of(&head), Some(container));
            head.pop();
            let cut = (container == QCOW1).then_some(Container::Qcow2);
            assert_eq!(Container::of(&head), cut, "{container} cut short");
            assert!(
                container == Container::Qcow2 || container.advice("'x'").contains("'x'"),
                "{container}"
            );
            assert!(at + magic.len() <= HEAD_BYTES);
        }
        for block in BZIP2_BLOCKS {
            let head = [b"BZh9", block].concat();
            assert_eq!(
                Container::of(&head).unwrap().to_string(),
                "bzip2-compressed file"
            );
            assert_eq!(Container::of(&[b"BZh0", block].concat()), None);
        }
    }

    #[test]
    fn disks_are_not_taken_for_something_else() {
        // Nothing, zeros, a boot sector, a LUKS header and an LVM label.
        let mut boot = vec![0xeb, 0x63, 0x90];
        boot.resize(HEAD_BYTES, 0);
        boot[510..].copy_from_slice(&[0x55, 0xaa]);
        let zeros = vec![0; HEAD_BYTES];
        for head in [
            &[][..],
            &zeros,
            &boot,
            b"LUKS\xba\xbe\0\x02",
            b"LABELONE",
            b"BZh9",
        ] {
            assert_eq!(Container::of(head), None, "{head:?}");
        }
    }
}
