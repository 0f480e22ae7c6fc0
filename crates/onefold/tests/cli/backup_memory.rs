//! Backups stay within their memory limit, as the kernel counts it, for disks of any size.

use crate::analyze_memory::outcome_and_peak;
use crate::harness::{Scene, noise};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The highest memory of any command with `--memory 64M`.
const PEAK_MIB_MAX: u64 = 96;

const GIB: u64 = 1 << 30;

/// A sparse disk with `pieces` pieces of data, evenly spread.
fn disk(scene: &Scene, name: &str, size_bytes: u64, pieces: u64, piece_bytes: usize) -> String {
    let path = scene.path(name);
    let file = File::create(&path).unwrap();
    file.set_len(size_bytes).unwrap();
    let mut piece = noise(1, piece_bytes);
    for n in 0..pieces {
        for block in piece.chunks_mut(4096) {
            block[..8].copy_from_slice(&(n + 1).to_le_bytes());
        }
        file.write_all_at(&piece, n * (size_bytes / pieces))
            .unwrap();
    }
    path
}

#[test]
fn disks_of_any_size_take_the_memory_that_is_given() {
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.set("TMPDIR", scene.path("."));
    scene.ok(&["backup", "init"]);
    let mut highest = 0;
    let mut run = |arguments: &[&str]| {
        let (found, peak) = outcome_and_peak(scene.command(arguments).spawn().unwrap());
        assert_eq!(found.code, Some(0), "{found:?}");
        assert!(peak <= PEAK_MIB_MAX, "{peak} MiB: {arguments:?}");
        highest = highest.max(peak);
    };
    // 4 TiB with hardly any data, and 64 GiB with a quarter of a gibibyte.
    for (name, size_bytes, pieces, piece_bytes) in [
        ("huge", 4096 * GIB, 1024, 4096),
        ("big", 64 * GIB, 256, 1 << 20),
    ] {
        let wanted = format!(
            "{name}={}",
            disk(&scene, name, size_bytes, pieces, piece_bytes)
        );
        let restored = scene.path("restored.raw");
        run(&["backup", "create", &wanted, "--memory", "64M"]);
        run(&["backup", "create", &wanted, "--memory", "64M"]);
        run(&["backup", "forget", "--keep-last", "1", "--yes"]);
        run(&["backup", "prune", "--wasted", "0%", "--yes"]);
        run(&["backup", "verify", "--data"]);
        let backup = format!("{name}@latest");
        run(&["backup", "restore", &backup, &restored, "--memory", "64M"]);
        let (disk, restored_disk) = (scene.path(name), File::open(&restored).unwrap());
        let disk = File::open(disk).unwrap();
        for n in 0..pieces {
            let at = n * (size_bytes / pieces);
            let (mut one, mut other) = (vec![0; piece_bytes + 4096], vec![0; piece_bytes + 4096]);
            disk.read_exact_at(&mut one, at).unwrap();
            restored_disk.read_exact_at(&mut other, at).unwrap();
            assert!(one == other, "at {at}");
        }
        std::fs::remove_file(&restored).unwrap();
    }
    // The process was observed at work.
    assert!(highest > 16, "{highest} MiB");
}

/// A qcow2 image in which all clusters of a disk share one cluster of the file.
#[allow(clippy::big_endian_bytes, reason = "as qcow2 has them")]
fn wiped_disk(scene: &Scene, size_bytes: u64) -> String {
    const CLUSTER: u64 = 1 << 16;
    const COPIED: u64 = 1 << 63;
    const PER_TABLE: u64 = CLUSTER / 8;
    let (header, refcounts, first_level, data) = (0, CLUSTER, 3 * CLUSTER, 4 * CLUSTER);
    let (clusters, tables) = (size_bytes / CLUSTER, size_bytes / CLUSTER / PER_TABLE);
    let path = scene.path("wiped.qcow2");
    let file = File::create(&path).unwrap();
    let put = |at: u64, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        file.write_all_at(&bytes, at).unwrap();
    };
    let (magic_and_version, bits_of_cluster) = (0x5146_49fb_0000_0003, 16);
    put(header, &[magic_and_version, 0, bits_of_cluster, size_bytes]);
    put(header + 32, &[tables, first_level, refcounts, 1 << 32]);
    // Bits of a reference count, and bytes of the header.
    put(header + 96, &[4 << 32 | 104]);
    put(refcounts, &[2 * CLUSTER]);
    file.write_all_at(&[0, 1].repeat(CLUSTER as usize / 2), 2 * CLUSTER)
        .unwrap();
    let table = |n: u64| (data + (n + 1) * CLUSTER) | COPIED;
    put(first_level, &(0..tables).map(table).collect::<Vec<_>>());
    file.write_all_at(&vec![0xff; CLUSTER as usize], data)
        .unwrap();
    put(data + CLUSTER, &vec![data | COPIED; clusters as usize]);
    path
}

#[test]
fn a_disk_of_one_content_takes_no_more_memory_than_any_other() {
    const MEMORY_MIB: u64 = 16;
    const SLACK_MIB: u64 = 24;
    let mut scene = Scene::new();
    scene.use_open_repository("repository");
    scene.ok(&["backup", "init"]);
    let (wanted, temp) = (
        format!("wiped={}", wiped_disk(&scene, 4 * GIB)),
        scene.path("."),
    );
    let memory = format!("{MEMORY_MIB}M");
    let create = [
        "backup",
        "create",
        &wanted,
        "--image-format",
        "qcow2",
        "--format",
        "json",
    ];
    let bounded = ["--memory", &memory, "--temp", &temp];
    let command = scene.command(&[&create[..], &bounded].concat()).spawn();
    let (found, peak) = outcome_and_peak(command.unwrap());
    assert_eq!(found.code, Some(0), "{found:?}");
    assert!(peak <= MEMORY_MIB + SLACK_MIB, "{peak} MiB");
    let backup = &found.json()["backups"][0];
    assert_eq!(
        (&backup["logical_bytes"], &backup["new_bytes"]),
        (&(4 * GIB).into(), &4096.into())
    );
}
