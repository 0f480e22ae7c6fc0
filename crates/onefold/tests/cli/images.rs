//! Imports and exports raw and qcow2 images, valid and invalid.

use crate::harness::{Outcome, Scene, noise, qemu_img, sparse_disk};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

const DISK_BYTES: usize = 24 << 20;

/// Data at the start, at the end, across piece borders, and smaller than a block.
const DATA: [(usize, usize); 4] = [
    (0, 1 << 20),
    ((5 << 20) - 3000, 6000),
    ((8 << 20) + 100, 1),
    (DISK_BYTES - 4096, 4096),
];

fn disk() -> Vec<u8> {
    sparse_disk(DISK_BYTES, &DATA)
}

/// The disk as a file with real holes.
fn sparse_file(scene: &Scene, name: &str) -> String {
    let path = scene.path(name);
    let file = File::create(&path).unwrap();
    file.set_len(DISK_BYTES as u64).unwrap();
    let disk = disk();
    for (offset, len) in DATA {
        file.write_all_at(&disk[offset..offset + len], offset as u64)
            .unwrap();
    }
    path
}

#[test]
fn raw_images_come_back_the_same_and_sparse() {
    let scene = Scene::new();
    let image = sparse_file(&scene, "image");
    let imported = scene.json(&["volume", "import", "vm", &image]);
    assert_eq!(imported["size_bytes"], DISK_BYTES);
    assert_eq!(imported["logical_blocks"], 256 + 2 + 1 + 1);
    assert!(
        imported["read_bytes"].as_u64().unwrap() < 4 << 20,
        "holes are skipped: {imported}"
    );

    let exported = scene.path("exported");
    scene.ok(&["volume", "export", "vm", &exported]);
    assert!(fs::read(&exported).unwrap() == disk());
    let on_disk = fs::metadata(&exported).unwrap().blocks() * 512;
    assert!(on_disk < 4 << 20, "{on_disk} bytes for a sparse image");
    assert!(scene.content("vm") == disk());
    assert!(!fs::exists(scene.path("exported.onefold-partial")).unwrap());
}

#[test]
fn zero_blocks_are_not_stored() {
    let scene = Scene::new();
    let image = scene.file("zeros", &vec![0; 8 << 20]);
    assert_eq!(
        scene.json(&["volume", "import", "vm", &image])["logical_blocks"],
        0
    );
}

#[test]
fn larger_blocks_are_filled_whole() {
    let scene = Scene::with_pool_options(&["--block-size", "64K"]);
    let image = sparse_file(&scene, "image");
    scene.ok(&["volume", "import", "vm", &image]);
    assert!(scene.content("vm") == disk());
}

#[test]
fn odd_sizes_are_rounded_up_and_said() {
    let scene = Scene::new();
    let image = scene.file("image", &noise(1, 10_001));
    let outcome = scene.ok(&["volume", "import", "vm", &image]);
    assert!(
        outcome
            .stderr
            .contains("10001 bytes were rounded up to 10240"),
        "{outcome:?}"
    );
    let mut padded = noise(1, 10_001);
    padded.resize(10_240, 0);
    assert_eq!(scene.content("vm"), padded);
    let quiet = scene.ok(&["--quiet", "volume", "import", "vm2", &image]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn qcow2_images_are_imported_by_content() {
    let scene = Scene::new();
    let raw = scene.file("raw", &disk());
    for (name, options) in [
        ("plain", &[][..]),
        ("small-clusters", &["-o", "cluster_size=4k"]),
        ("old", &["-o", "compat=0.10"]),
        ("compressed", &["-c"]),
    ] {
        let image = scene.path(name);
        let convert = ["convert", "-f", "raw", "-O", "qcow2"];
        qemu_img(&[&convert, options, &[&raw, &image]].concat());
        let imported = scene.json(&["volume", "import", name, &image, "--image-format", "qcow2"]);
        assert_eq!(imported["logical_blocks"], 256 + 2 + 1 + 1, "{name}");
        assert!(scene.content(name) == disk(), "{name}");
    }
    let empty = scene.path("empty");
    qemu_img(&["create", "-f", "qcow2", &empty, "3T"]);
    let imported = scene.json(&[
        "volume",
        "import",
        "empty",
        &empty,
        "--image-format",
        "qcow2",
    ]);
    assert_eq!(imported["size_bytes"], 3u64 << 40);
}

#[test]
fn qcow2_exports_are_sound_and_the_same() {
    let scene = Scene::new();
    let image = scene.file("image", &disk());
    scene.ok(&["volume", "import", "vm", &image]);
    let exported = scene.path("exported.qcow2");
    scene.ok(&[
        "volume",
        "export",
        "vm",
        &exported,
        "--image-format",
        "qcow2",
    ]);
    qemu_img(&["check", "-f", "qcow2", &exported]);
    qemu_img(&["compare", "-f", "raw", "-F", "qcow2", &image, &exported]);
    assert!(fs::metadata(&exported).unwrap().blocks() * 512 < 6 << 20);
}

#[test]
fn a_format_is_never_guessed() {
    let scene = Scene::new();
    let image = scene.path("image");
    qemu_img(&["create", "-f", "qcow2", &image, "1M"]);
    let outcome = scene.run(&["volume", "import", "vm", &image]);
    outcome.is_refusal(1, &["qcow2 image", "--image-format qcow2"]);
    let as_raw = ["volume", "import", "vm", &image, "--image-format", "raw"];
    let outcome = scene.ok(&[&["--quiet"], &as_raw[..]].concat());
    assert!(outcome.stderr.contains("warning: "), "{outcome:?}");
    let bytes = fs::read(&image).unwrap();
    assert_eq!(scene.content("vm")[..bytes.len()], bytes);
    let raw = scene.file("raw", &noise(1, 1 << 20));
    let outcome = scene.run(&["volume", "import", "other", &raw, "--image-format", "qcow2"]);
    outcome.is_refusal(1, &["not a usable qcow2 image"]);
}

#[test]
fn other_files_are_read_only_when_allowed() {
    let scene = Scene::new();
    let base = scene.file("base", &disk());
    let overlay = scene.path("overlay");
    qemu_img(&["create", "-f", "qcow2", "-b", &base, "-F", "raw", &overlay]);
    let import = [
        "volume",
        "import",
        "vm",
        &overlay,
        "--image-format",
        "qcow2",
    ];
    scene
        .run(&import)
        .is_refusal(1, &["backing file", "base", "--allow-backing"]);
    assert_eq!(scene.volumes(), [""; 0]);
    scene.ok(&[&import[..], &["--allow-backing"]].concat());
    assert!(scene.content("vm") == disk());

    let external = scene.path("external");
    let options = format!("data_file={}", scene.path("external.data"));
    qemu_img(&[
        "convert", "-f", "raw", "-O", "qcow2", "-o", &options, &base, &external,
    ]);
    let import = [
        "volume",
        "import",
        "vm2",
        &external,
        "--image-format",
        "qcow2",
    ];
    scene
        .run(&import)
        .is_refusal(1, &["data file", "--allow-backing"]);
    scene.ok(&[&import[..], &["--allow-backing"]].concat());
    assert!(scene.content("vm2") == disk());

    fs::remove_file(&base).unwrap();
    let import = [
        "volume",
        "import",
        "vm3",
        &overlay,
        "--image-format",
        "qcow2",
        "--allow-backing",
    ];
    scene.run(&import).is_refusal(1, &["base", "No such file"]);
}

#[test]
fn a_chain_of_images_is_followed_to_its_end_and_not_further() {
    let scene = Scene::new();
    let base = scene.file("base", &disk());
    let (middle, top) = (scene.path("middle"), scene.path("top"));
    qemu_img(&["create", "-f", "qcow2", "-b", &base, "-F", "raw", &middle]);
    qemu_img(&["create", "-f", "qcow2", "-b", &middle, "-F", "qcow2", &top]);
    let import = |name| {
        scene.run(&[
            "volume",
            "import",
            name,
            &top,
            "--image-format",
            "qcow2",
            "--allow-backing",
        ])
    };
    assert_eq!(import("vm").code, Some(0));
    assert!(scene.content("vm") == disk());

    qemu_img(&[
        "rebase", "-u", "-f", "qcow2", "-b", &top, "-F", "qcow2", &middle,
    ]);
    import("circle").is_refusal(1, &["more than", "beneath"]);
    assert_eq!(scene.volumes(), ["vm"]);
}

#[test]
fn encrypted_images_are_refused() {
    let scene = Scene::new();
    let image = scene.path("image");
    // The older method does not measure the machine, which fails on a busy one.
    let options = "encrypt.format=aes,encrypt.key-secret=s";
    let secret = ["--object", "secret,id=s,data=x"];
    let create = ["create", "-f", "qcow2", "-o", options];
    qemu_img(&[&create[..], &secret, &[&image, "1M"]].concat());
    let import = ["volume", "import", "vm", &image, "--image-format", "qcow2"];
    scene.run(&import).is_refusal(1, &["encrypted"]);
    // The encryption method in the header: 1 is AES, 2 is LUKS.
    let mut bytes = fs::read(&image).unwrap();
    assert_eq!(bytes[32..36], [0, 0, 0, 1]);
    bytes[35] = 2;
    fs::write(&image, &bytes).unwrap();
    scene.run(&import).is_refusal(1, &["encrypted"]);
}

#[test]
fn images_that_cannot_be_read_right_are_refused() {
    let scene = Scene::new();
    let plain = scene.path("plain");
    qemu_img(&["create", "-f", "qcow2", &plain, "1M"]);
    let header = fs::read(&plain).unwrap();
    // Incompatible feature bits: dirty, corrupt, and an undefined one.
    for bit in [0, 1, 63] {
        let mut bytes = header.clone();
        bytes[79 - bit / 8] |= 1 << (bit % 8);
        let image = scene.file("image", &bytes);
        let outcome = scene.run(&["volume", "import", "vm", &image, "--image-format", "qcow2"]);
        outcome.is_refusal(1, &["not a usable qcow2 image"]);
    }
    // A disk of 2^47 bytes with a table for one of 2^20.
    let mut bytes = header;
    bytes[25] = 0x80;
    let image = scene.file("image", &bytes);
    let import = ["volume", "import", "vm", &image, "--image-format", "qcow2"];
    scene
        .run(&import)
        .is_refusal(1, &["not a usable qcow2 image", "table"]);
    assert_eq!(scene.volumes(), [""; 0]);
}

#[test]
fn a_cut_qcow2_image_is_refused_wherever_it_is_cut() {
    let scene = Scene::new();
    let raw = scene.file(
        "raw",
        &sparse_disk(4 << 20, &[(0, 300_000), (3 << 20, 1 << 20)]),
    );
    for options in [&[][..], &["-c"], &["-o", "cluster_size=4k"]] {
        let whole = scene.path("whole");
        let convert = ["convert", "-f", "raw", "-O", "qcow2"];
        qemu_img(&[&convert, options, &[&raw, &whole]].concat());
        let bytes = fs::read(&whole).unwrap();
        let last = bytes.len() - 1;
        for len in [
            0,
            3,
            4,
            71,
            100,
            5000,
            65_536,
            70_000,
            last / 2,
            last - 4096,
            last - 511,
        ] {
            let cut = scene.file("cut", &bytes[..len]);
            let outcome = scene.run(&["volume", "import", "vm", &cut, "--image-format", "qcow2"]);
            assert_eq!(
                outcome.code,
                Some(1),
                "{options:?} cut to {len}: {outcome:?}"
            );
            outcome.is_refusal(1, &[]);
        }
        assert_eq!(scene.volumes(), [""; 0]);
        assert_eq!(scene.json(&["pool", "stat"])["private_blocks"], 0);
    }
}

#[test]
fn what_is_no_image_is_refused() {
    let scene = Scene::new();
    let empty = scene.file("empty", b"");
    scene
        .run(&["volume", "import", "vm", &empty])
        .is_refusal(1, &["empty"]);
    let directory = scene.pool();
    let outcome = scene.run(&["volume", "import", "vm", directory.to_str().unwrap()]);
    outcome.is_refusal(1, &["is a directory"]);
    scene
        .run(&["volume", "import", "vm", "/no/image"])
        .is_refusal(1, &["/no/image"]);
    let image = scene.file("image", &noise(1, 4096));
    let outcome = scene.run(&["volume", "import", "vm", &image, "--image-format", "vmdk"]);
    outcome.is_refusal(2, &["vmdk"]);
    assert_eq!(scene.volumes(), [""; 0]);
}

/// A container's signature, its offset, and words of the refusal.
const CONTAINERS: [(usize, &[u8], [&str; 2]); 16] = [
    (
        0,
        b"QFI\xfb\0\0\0\x01",
        ["qcow version 1 image", "-f qcow "],
    ),
    (0, b"EVF\x09\r\n\xff\0", ["EWF (E01) image", "ewfexport"]),
    (0, b"VMA\0", ["VMA", "vma extract"]),
    (0, b"Rar!\x1a\x07", ["RAR archive", "unrar x"]),
    (0, b"KDMV", ["VMDK image", "qemu-img convert -f vmdk"]),
    (0, b"# Disk DescriptorFile", ["VMDK image", "-f vmdk"]),
    (64, b"\x7f\x10\xda\xbe", ["VDI image", "-f vdi"]),
    (0, b"vhdxfile", ["VHDX image", "-f vhdx"]),
    (0, b"conectix", ["VHD image", "-f vpc"]),
    (0, b"\x1f\x8b\x08", ["gzip-compressed", "gzip -dc"]),
    (0, b"\xfd7zXZ\0", ["xz-compressed", "xz -dc"]),
    (0, b"\x28\xb5\x2f\xfd", ["zstd-compressed", "zstd -dc"]),
    (0, b"BZh91AY&SY", ["bzip2-compressed", "bzip2 -dc"]),
    (0, b"PK\x03\x04", ["ZIP archive", "unzip"]),
    (257, b"ustar\0", ["tar", "tar -xf"]),
    (3584, b"conectix", ["VHD image", "-f vpc"]),
];

#[test]
fn what_holds_a_disk_in_a_form_of_its_own_is_refused_unless_raw_is_named() {
    let scene = Scene::new();
    for (n, (at, magic, says)) in CONTAINERS.into_iter().enumerate() {
        let mut bytes = noise(1, 4096);
        bytes[at..at + magic.len()].copy_from_slice(magic);
        let image = scene.file("image", &bytes);
        let import = ["volume", "import", "vm", &image];
        scene.run(&import).is_refusal(1, &says);
        // The same file through a pipe, with and without its size.
        for size in [&["--size", "4096"][..], &[]] {
            let piped = [&["volume", "import", "vm", "-"], size].concat();
            let mut child = (scene.command(&piped).stdin(Stdio::piped()))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // The command may exit before it has read everything.
            let _ = child.stdin.take().unwrap().write_all(&bytes);
            let outcome = Outcome::of(child);
            match (at, size) {
                // The end of a stream that is not spooled is seen only when all of it is stored.
                (3584, [_, ..]) => drop(scene.ok(&["volume", "delete", "vm", "--yes"])),
                (3584, []) => assert!(outcome.stderr.contains(says[0]), "{outcome:?}"),
                _ => outcome.is_refusal(1, &says),
            }
        }
        assert_eq!(scene.volumes().len(), n, "{says:?}");
        let name = format!("raw{n}");
        scene.ok(&["volume", "import", &name, &image, "--image-format", "raw"]);
        assert!(scene.content(&name) == bytes, "{says:?}");
    }
}

#[test]
fn images_of_other_hypervisors_are_refused_as_qemu_makes_them() {
    let scene = Scene::new();
    let raw = scene.file("raw", &disk());
    for (format, options) in [
        ("vmdk", &[][..]),
        ("vmdk", &["-o", "subformat=streamOptimized"]),
        ("vmdk", &["-o", "subformat=monolithicFlat"]),
        ("vdi", &[]),
        ("vhdx", &[]),
        ("vpc", &[]),
        ("vpc", &["-o", "subformat=fixed"]),
    ] {
        let image = scene.path("image");
        let convert = ["convert", "-f", "raw", "-O", format];
        qemu_img(&[&convert, options, &[&raw, &image]].concat());
        let says = format!("qemu-img convert -f {format}");
        scene
            .run(&["volume", "import", "vm", &image])
            .is_refusal(1, &[&says]);
    }
}

#[test]
fn features_that_are_not_read_are_refused_with_the_command_that_converts() {
    let scene = Scene::new();
    let raw = scene.file("raw", &disk());
    for (format, options, says) in [
        ("qcow", "encryption=off", "qcow image of version 1"),
        ("qcow2", "compression_type=zstd", "compressed with zstd"),
        ("qcow2", "extended_l2=on", "extended L2"),
    ] {
        let image = scene.path("image");
        let convert = ["convert", "-f", "raw", "-O", format, "-o", options];
        qemu_img(&[&convert[..], &[&raw, &image]].concat());
        let import = ["volume", "import", "vm", &image, "--image-format", "qcow2"];
        let says = [says, "qemu-img convert -f qcow"];
        scene.run(&import).is_refusal(1, &says);
        let remedy = ["convert", "-f", format, "-O", "qcow2"];
        let converted = scene.path("converted");
        qemu_img(&[&remedy[..], &[&image, &converted]].concat());
        let import = ["volume", "import", "vm", &converted];
        scene.ok(&[&import[..], &["--image-format", "qcow2"]].concat());
        assert!(scene.content("vm") == disk(), "{format} {options}");
        scene.ok(&["volume", "delete", "vm", "--yes"]);
    }
}

#[test]
fn devices_of_characters_and_pipes_hold_no_disk() {
    let scene = Scene::new();
    let import = ["volume", "import", "vm", "/dev/zero", "--size", "1M"];
    scene.run(&import).is_refusal(1, &["character device"]);
    // FIFOs are refused as backing files, too. The FIFO has no writer, so opening it would block for ever.
    let fifo = scene.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    for beneath in [&fifo, "/dev/zero"] {
        let overlay = scene.path("overlay");
        let create = ["create", "-u", "-f", "qcow2", "-b", beneath, "-F", "raw"];
        qemu_img(&[&create[..], &[&overlay, "1M"]].concat());
        let import = ["volume", "import", "vm", &overlay, "--allow-backing"];
        scene
            .run(&[&import[..], &["--image-format", "qcow2"]].concat())
            .is_refusal(1, &[beneath, "neither a file nor a block device"]);
    }
    assert_eq!(scene.volumes(), [""; 0]);
}

#[test]
fn an_export_never_overwrites() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "vm", "--size", "1M"]);
    let precious = scene.file("precious", b"do not touch");
    scene
        .run(&["volume", "export", "vm", &precious])
        .is_refusal(1, &["exists"]);
    assert_eq!(fs::read(&precious).unwrap(), b"do not touch");
    let outcome = scene.run(&["volume", "export", "vm", "/no/such/directory/x"]);
    outcome.is_refusal(1, &["/no/such/directory"]);
    let outcome = scene.run(&["volume", "export", "vm", "-", "--image-format", "qcow2"]);
    outcome.is_refusal(2, &["standard output"]);
}
