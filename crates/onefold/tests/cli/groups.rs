//! Pools that hosts share: two run directories on one machine stand for two hosts.

use crate::harness::{Daemon, Outcome, Scene, is_in_ceph, noise, run, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::Command;
use std::thread;
use std::time::Duration;

const IMAGE_BYTES: usize = 4 << 20;
const IMAGE_BLOCKS: u64 = (IMAGE_BYTES / 4096) as u64;

/// Two hosts that share a pool in Ceph.
struct Hosts {
    scene: Scene,
}

impl Hosts {
    /// `None`, with a note, if pools are not in Ceph.
    fn new() -> Option<Self> {
        Self::with_pool_options(&["--shards", "4", "--size", "1G"])
    }

    fn with_pool_options(options: &[&str]) -> Option<Self> {
        if !is_in_ceph() {
            println!("left out for a pool in a directory: hosts share pools in Ceph only");
            return None;
        }
        let scene = Scene::with_pool_options(options);
        Some(Self { scene })
    }

    fn daemon(&self, host: &str) -> Daemon {
        let mut command = self.scene.command(&["serve", "--host-name", host]);
        let mut daemon = Daemon::start(command.env("ONEFOLD_RUN", self.scene.path(host)));
        daemon.wait_for_line("serving");
        daemon
    }

    fn run(&self, host: &str, arguments: &[&str]) -> Outcome {
        let mut command = self.scene.command(arguments);
        command.env("ONEFOLD_RUN", self.scene.path(host));
        Outcome::of(command.spawn().unwrap())
    }

    #[track_caller]
    fn json(&self, host: &str, arguments: &[&str]) -> Value {
        let outcome = self.run(host, &[&["--format", "json"], arguments].concat());
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
        outcome.json()
    }

    /// Blocks that are private to volumes of this host, and published blocks of the whole pool.
    fn blocks(&self, host: &str) -> (u64, u64) {
        let stat = self.json(host, &["pool", "stat"]);
        let blocks = |name: &str| stat[name].as_u64().unwrap();
        let private = blocks("private_blocks") + blocks("unsettled_blocks");
        (private, blocks("unique_blocks") + blocks("shared_blocks"))
    }

    /// Checks the pool once the shards of a dead host are served again.
    #[track_caller]
    fn check_when_served(&self, host: &str) {
        wait_until("all shards are served", || {
            let checked = self.run(host, &["pool", "check"]);
            assert!(
                checked.code == Some(0) || checked.code == Some(1),
                "{checked:?}"
            );
            checked.code == Some(0)
        });
    }

    #[track_caller]
    fn content(&self, host: &str, volume: &str) -> Vec<u8> {
        let file = self.scene.path(&format!("{host}-{volume}.img"));
        let outcome = self.run(host, &["volume", "export", volume, &file]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let content = std::fs::read(&file).unwrap();
        std::fs::remove_file(file).unwrap();
        content
    }
}

#[test]
fn only_pools_in_ceph_have_shards() {
    for shards in ["0", "3", "2048", "x"] {
        let created = run(&["pool", "create", "ceph:none/such", "--shards", shards]);
        created.is_refusal(2, &["--shards", "a power of two from 1 to 1024"]);
    }
    run(&["pool", "create", "nowhere", "--shards", "4"]).is_refusal(2, &["--shards", "in Ceph"]);
}

#[test]
fn a_pool_with_one_owner_has_no_groups() {
    let scene = Scene::new();
    for words in [
        &["group", "list"][..],
        &["group", "create"],
        &["group", "take", "1"],
        &["host", "list"],
    ] {
        scene.run(words).is_refusal(2, &["one owner", "--shards"]);
    }
    let create = ["volume", "create", "v", "--size", "1M", "--group", "1"];
    scene.run(&create).is_refusal(2, &["--group", "one owner"]);
    for option in [["--host-name", "kvm1"], ["--groups-max", "2"]] {
        let serve = [&["serve"], &option[..]].concat();
        let said = scene.run(&serve).stderr;
        assert!(
            said.contains(option[0]) && said.contains("one owner"),
            "{said}"
        );
    }
}

#[test]
fn hosts_store_the_same_content_once() {
    let Some(hosts) = Hosts::new() else { return };
    let (_one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    let content = noise(7, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    for (host, volume) in [("kvm1", "a"), ("kvm2", "b")] {
        // Without dedup, the import publishes nothing: the finders do.
        let import = ["volume", "import", volume, &image, "--dedup", "off"];
        hosts.json(host, &import);
        assert_eq!(hosts.blocks(host).0, IMAGE_BLOCKS);
        let set = [
            "volume",
            "set",
            volume,
            "--dedup",
            "offline",
            "--interval",
            "1",
        ];
        hosts.json(host, &[&set[..], &["--cold-passes", "1"]].concat());
    }
    wait_until("the finders of both hosts have shared the content", || {
        let found = ["kvm1", "kvm2"].map(|host| hosts.blocks(host));
        found == [(0, IMAGE_BLOCKS); 2]
    });
    assert_eq!(hosts.content("kvm1", "a"), content);
    assert_eq!(hosts.content("kvm2", "b"), content);
    let _without_groups = hosts.daemon("kvm3");
    assert_eq!(hosts.blocks("kvm3"), (0, IMAGE_BLOCKS));
}

#[test]
fn a_name_is_taken_on_all_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    let (_one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    hosts.json("kvm1", &["volume", "create", "vm", "--size", "1M"]);
    let taken = hosts.run("kvm2", &["volume", "create", "vm", "--size", "1M"]);
    taken.is_refusal(1, &["'vm' exists already", "group 1"]);
    let there = hosts.run("kvm2", &["volume", "stat", "vm"]);
    there.is_refusal(1, &["group 1", "'kvm1'", "group take 1"]);
    hosts.json("kvm2", &["volume", "create", "other", "--size", "1M"]);
    let renamed = hosts.run("kvm2", &["volume", "rename", "other", "vm"]);
    renamed.is_refusal(1, &["exists already"]);
    // Requests about all blocks are refused, and change nothing.
    for words in [
        &["pool", "scrub"][..],
        &["pool", "trim"],
        &["pool", "resize", "--size", "2G"],
        &["index", "convert", "--to", "btree"],
        &["pool", "export-metadata", &hosts.scene.path("metadata")],
    ] {
        let outcome = hosts.run("kvm1", words);
        outcome.is_refusal(2, &["concerns all groups of the shared pool"]);
    }
    let repair = hosts.run("kvm1", &["pool", "check", "--repair"]);
    repair.is_refusal(2, &["--repair is not possible in a pool that hosts share"]);
    let alone = hosts.scene.run(&["volume", "list"]);
    alone.is_refusal(1, &["hosts share the pool", "onefold serve"]);
}

#[test]
fn damaged_rows_are_named_and_the_rest_is_served() {
    let Some(hosts) = Hosts::new() else { return };
    let one = hosts.daemon("kvm1");
    let content = noise(12, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    for volume in ["a", "b"] {
        hosts.json("kvm1", &["volume", "import", volume, &image]);
    }
    hosts.scene.set_row("directory", "volume/c", Some("7x"));
    let created = hosts.run("kvm1", &["volume", "create", "c", "--size", "1M"]);
    created.is_refusal(1, &["'volume/c'", "directory"]);
    hosts.scene.set_row("directory", "volume/c", None);

    let row = "next";
    hosts.scene.set_row("extents", row, Some("67108865"));
    let stat = hosts.run("kvm1", &["pool", "stat"]);
    stat.is_refusal(1, &["object extents is damaged", "row next"]);
    for volume in ["a", "b"] {
        assert_eq!(hosts.content("kvm1", volume), content, "{volume}");
    }
    // A group that cannot learn its last exchange stays closed, and the other one is opened.
    assert_eq!(one.terminate().code(), Some(0));
    hosts.scene.set_row("extents", row, Some("9"));
    hosts.scene.set_row("extents", "group.1", Some("many"));
    let _one = hosts.daemon("kvm1");
    assert_eq!(hosts.content("kvm1", "b"), content);
    let closed = hosts.run("kvm1", &["volume", "stat", "a"]);
    closed.is_refusal(1, &["group 1"]);
}

#[test]
fn groups_that_are_too_many_for_the_memory_are_refused() {
    let Some(hosts) = Hosts::new() else { return };
    for most in ["0", "14", "1000000"] {
        let serve = ["serve", "--host-name", "kvm1", "--groups-max", most];
        let refused = hosts.run("kvm1", &serve);
        refused.is_refusal(2, &["impossible", "1 to 13"]);
    }
    let serve = ["serve", "--host-name", "no/name"];
    hosts.run("kvm1", &serve).is_refusal(2, &["--host-name"]);
}

#[test]
fn a_check_counts_the_blocks_of_all_groups() {
    let Some(hosts) = Hosts::new() else { return };
    let (one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    let image = hosts.scene.file("image", &noise(9, IMAGE_BYTES));
    for (host, volume, dedup) in [
        ("kvm1", "a", "offline"),
        ("kvm2", "b", "offline"),
        ("kvm2", "c", "off"),
    ] {
        hosts.json(
            host,
            &["volume", "import", volume, &image, "--dedup", dedup],
        );
    }
    for host in ["kvm1", "kvm2"] {
        let report = hosts.json(host, &["pool", "check"]);
        assert_eq!(
            (&report["findings"], &report["listed"]),
            (&json!(0), &json!([]))
        );
        assert_eq!(report["mapped_blocks"], json!(3 * IMAGE_BLOCKS));
    }
    // The jobs continue.
    hosts.json("kvm1", &["volume", "delete", "a", "--yes"]);
    wait_until("the collector releases the references of a volume", || {
        hosts.json("kvm1", &["pool", "stat"])["pending_release_blocks"] == json!(0)
    });
    assert_eq!(hosts.json("kvm2", &["pool", "check"])["findings"], json!(0));
    drop(one);
    let without = hosts.run("kvm2", &["pool", "check"]);
    // The command has said before that it waits.
    let is_named = |part: &&str| without.stderr.contains(*part);
    let parts = ["group 1 cannot be counted", "group take 1"];
    assert!(
        without.code == Some(1) && parts.iter().all(is_named),
        "{without:?}"
    );
}

#[test]
fn an_index_is_counted_again_from_all_groups() {
    let Some(hosts) = Hosts::new() else { return };
    let (one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    let image = hosts.scene.file("image", &noise(9, IMAGE_BYTES));
    for (host, volume) in [("kvm1", "a"), ("kvm2", "b")] {
        let offline = ["--dedup", "offline"];
        let import = ["volume", "import", volume, &image];
        hosts.json(host, &[&import[..], &offline].concat());
    }
    for host in ["kvm2", "kvm1"] {
        let rebuilt = hosts.json(host, &["index", "rebuild"]);
        let counted = ["unique_blocks", "shared_blocks", "references"].map(|key| &rebuilt[key]);
        let all = [0, IMAGE_BLOCKS, 2 * IMAGE_BLOCKS].map(|count| json!(count));
        assert_eq!(counted, [&all[0], &all[1], &all[2]]);
        assert_eq!(rebuilt["needs_rebuild"], json!(false));
        assert_eq!(hosts.json("kvm1", &["pool", "check"])["findings"], json!(0));
    }
    // The jobs continue.
    hosts.json("kvm2", &["volume", "delete", "b", "--yes"]);
    wait_until("the collector releases the references of a volume", || {
        hosts.json("kvm2", &["pool", "stat"])["pending_release_blocks"] == json!(0)
    });
    assert_eq!(hosts.json("kvm2", &["pool", "check"])["findings"], json!(0));
    drop(one);
    let without = hosts.run("kvm2", &["index", "rebuild"]);
    assert!(
        without.code == Some(1) && without.stderr.contains("group 1 cannot be counted"),
        "{without:?}"
    );
}

#[test]
fn a_pool_with_one_owner_is_converted_whenever_a_conversion_is_killed() {
    let Some(hosts) = Hosts::with_pool_options(&["--size", "1G"]) else {
        return;
    };
    let scene = &hosts.scene;
    let content = noise(11, IMAGE_BYTES);
    let image = scene.file("image", &content);
    scene.json(&["volume", "import", "a", &image]);
    scene.json(&["volume", "import", "b", &image, "--dedup", "inline"]);
    scene.json(&["volume", "import", "own", &image, "--domain", "own"]);
    scene.json(&["snapshot", "create", "a@before"]);
    scene.json(&["volume", "delete", "b", "--yes"]);

    let convert = ["pool", "convert", "--shards", "4", "--host-name", "kvm1"];
    let plan = scene.run(&convert);
    assert!(
        plan.code == Some(2) && plan.stderr.contains("--yes"),
        "{plan:?}"
    );
    let mut daemon = Daemon::start(&mut scene.command(&["serve"]));
    daemon.wait_for_line("serving");
    let convert = [&convert[..], &["--yes"]].concat();
    scene.run(&convert).is_refusal(1, &["in use by process"]);
    assert_eq!(daemon.terminate().code(), Some(0));

    let mut killed = 0;
    for after in (0..).map(|n| Duration::from_millis(40 * n * n)) {
        let mut child = scene.command(&convert).spawn().unwrap();
        thread::sleep(after);
        child.kill().unwrap();
        let ended = Outcome::of(child);
        let listed = scene.run(&["volume", "list"]);
        if listed.code != Some(0) {
            listed.is_refusal(1, &["hosts share the pool"]);
            break;
        }
        assert_ne!(ended.code, Some(0), "{ended:?}");
        assert_eq!(scene.json(&["pool", "check"])["findings"], json!(0));
        killed += 1;
    }
    assert!(killed > 0, "no conversion was killed before its end");
    // If the last one was killed, too, something may be left.
    let again = scene.run(&convert);
    assert!(
        again.code == Some(0) || again.stderr.contains("already"),
        "{again:?}"
    );
    scene.run(&convert).is_refusal(1, &["already"]);

    let (_one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    for volume in ["a", "a@before", "own"] {
        assert_eq!(hosts.content("kvm1", volume), content, "{volume}");
    }
    hosts.json("kvm2", &["volume", "import", "other", &image]);
    hosts.json(
        "kvm2",
        &["volume", "import", "same", &image, "--domain", "own"],
    );
    wait_until("both contents are shared", || {
        hosts.run("kvm2", &["pool", "dedup"]).code == Some(0)
            && hosts.blocks("kvm2") == (0, 2 * IMAGE_BLOCKS)
    });
    assert_eq!(hosts.json("kvm2", &["pool", "check"])["findings"], json!(0));
    // The collector of the converted group still had references of the deleted volume to release.
    wait_until("each entry has a reference, and no other has", || {
        hosts.json("kvm1", &["index", "stat"])["references"] == json!(4 * IMAGE_BLOCKS)
    });
    let stat = hosts.json("kvm1", &["pool", "stat"]);
    assert_eq!(stat["pool_blocks"], json!((1 << 30) / 4096));
}

#[test]
fn a_pool_in_a_directory_is_not_converted() {
    let scene = Scene::new();
    if !is_in_ceph() {
        scene
            .run(&["pool", "convert"])
            .is_refusal(2, &["in Ceph only"]);
    }
}

#[test]
fn a_reservation_takes_space_from_the_pool() {
    let Some(hosts) = Hosts::new() else { return };
    let _one = hosts.daemon("kvm1");
    let sized = ["volume", "create", "vm", "--size", "2G", "--reservation"];
    let refused = hosts.run("kvm1", &[&sized[..], &["2G"]].concat());
    refused.is_refusal(1, &["cannot be kept free"]);
    hosts.json("kvm1", &[&sized[..], &["400M"]].concat());
    let raised = ["volume", "set", "vm", "--reservation", "600M"];
    hosts.json("kvm1", &raised);
    // It is open here already.
    hosts.json("kvm1", &["group", "take", "1"]);
}

#[test]
fn a_group_moves_when_its_host_has_died_or_gives_it_up() {
    let Some(hosts) = Hosts::new() else { return };
    let (one, two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    let content = noise(8, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    hosts.json("kvm1", &["volume", "import", "vm", &image]);
    let kept = hosts.run("kvm2", &["group", "take", "1"]);
    kept.is_refusal(1, &["group 1", "in use by process", "--take"]);
    one.kill();
    let patient = ["--patience", "1s", "group", "take", "1"];
    let taken = hosts.json("kvm2", &patient);
    let moved = json!([{"number": 1, "host": "kvm2", "volumes": ["vm"], "is_open_here": true}]);
    assert_eq!(taken["groups"], moved);
    assert_eq!(hosts.content("kvm2", "vm"), content);
    // The finder works on, with the shards of the host that died.
    hosts.json("kvm2", &["volume", "import", "again", &image]);
    wait_until("the shards of the dead host are served again", || {
        hosts.run("kvm2", &["pool", "dedup"]).code == Some(0)
            && hosts.blocks("kvm2") == (0, IMAGE_BLOCKS)
    });
    let one = hosts.daemon("kvm1");
    let groups = hosts.json("kvm1", &["group", "list"]);
    assert_eq!(groups["groups"][0]["host"], "kvm2");
    hosts.json("kvm1", &["group", "take", "1", "--take"]);
    assert_eq!(hosts.content("kvm1", "vm"), content);
    let gone = hosts.run("kvm2", &["volume", "stat", "vm"]);
    gone.is_refusal(1, &["'kvm1'"]);
    for daemon in [one, two] {
        assert_eq!(daemon.terminate().code(), Some(0));
    }
    // They gave everything up, so nobody has to be fenced.
    let (one, two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    assert_eq!(hosts.content("kvm1", "vm"), content);
    assert_eq!(hosts.content("kvm2", "again"), content);
    for lines in [one, two].map(Daemon::end_and_lines) {
        assert!(
            !lines.iter().any(|line| line.contains("fencing")),
            "{lines:?}"
        );
    }
}

#[test]
fn a_group_that_two_hosts_take_at_once_is_on_one_of_them() {
    let Some(hosts) = Hosts::new() else { return };
    let content = noise(21, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    let one = hosts.daemon("kvm1");
    hosts.json("kvm1", &["volume", "import", "vm", &image]);
    let _others = ["kvm2", "kvm3"].map(|host| hosts.daemon(host));
    one.kill();
    let take = ["--patience", "1s", "group", "take", "1"];
    let taken = thread::scope(|scope| {
        let takes = ["kvm2", "kvm3"].map(|host| scope.spawn(|| hosts.run(host, &take)));
        takes.map(|take| take.join().unwrap())
    });
    let (winner, loser, refused) = match &taken {
        [won, lost] if won.code == Some(0) => ("kvm2", "kvm3", lost),
        [lost, won] if won.code == Some(0) => ("kvm3", "kvm2", lost),
        _ => panic!("nobody has the group: {taken:?}"),
    };
    refused.is_refusal(1, &["group 1"]);
    for host in [winner, loser] {
        let group = &hosts.json(host, &["group", "list"])["groups"][0];
        assert_eq!(group["host"], winner);
        assert_eq!(group["is_open_here"], json!(host == winner));
    }
    assert_eq!(hosts.content(winner, "vm"), content);
    hosts.check_when_served(loser);
}

#[test]
fn a_host_that_wakes_up_changes_nothing_though_its_fence_was_removed() {
    let Some(hosts) = Hosts::new() else { return };
    let content = noise(22, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    let mut frozen = hosts.daemon("kvm1");
    let _two = hosts.daemon("kvm2");
    hosts.json("kvm1", &["volume", "import", "vm", &image]);
    let stat = hosts.json("kvm1", &["volume", "stat", "vm"]);
    let uri = stat["nbd_uri"].as_str().unwrap().to_owned();
    frozen.signal(Signal::STOP);
    // The kernel takes the connection, and the daemon finds the write when it wakes up.
    let write = ["-f", "raw", "-c", "write -P 7 0 4M", "-c", "flush", &uri];
    let mut late = Command::new("qemu-io").args(write).spawn().unwrap();
    hosts.json("kvm2", &["--patience", "1s", "group", "take", "1"]);

    let rows = hosts.scene.rows("directory");
    let fenced: Vec<&str> = rows
        .iter()
        .filter_map(|row| row.strip_prefix("fenced/"))
        .collect();
    assert!(!fenced.is_empty(), "{rows:?}");
    fenced
        .iter()
        .for_each(|address| hosts.scene.lift_fence(address));
    let _three = hosts.daemon("kvm3");
    frozen.signal(Signal::CONT);
    frozen.wait_for_line("another host has taken");
    assert!(!late.wait().unwrap().success(), "the write was answered");
    assert_ne!(frozen.end_and_lines(), [""; 0]);
    assert_eq!(hosts.content("kvm2", "vm"), content);
    hosts.check_when_served("kvm3");
}

/// The memory that outlives the daemon is in the run directory, for each group.
#[test]
fn a_group_without_memory_for_its_answers_loses_none() {
    if !is_in_ceph() {
        return;
    }
    let options = ["--shards", "4", "--size", "1G"];
    let Some(scene) = Scene::on_small_host(40, &options) else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let hosts = Hosts { scene };
    let mut one = hosts.daemon("kvm1");
    let names = (0..5).map(|n| format!("vm{n}")).collect::<Vec<_>>();
    for name in &names {
        hosts.json("kvm1", &["volume", "create", name, "--size", "1M"]);
    }
    one.wait_for_line("waits for the disk before it is answered");
    for (name, pattern) in names.iter().zip(1..) {
        let stat = hosts.json("kvm1", &["volume", "stat", name]);
        let uri = stat["nbd_uri"].as_str().unwrap();
        let write = format!("write -P {pattern} 0 1M");
        // It is answered, and not flushed when the client is gone.
        let mut qemu_io = Command::new("qemu-io");
        let written = qemu_io.args(["-f", "raw", "-t", "unsafe", "-c", &write, uri]);
        assert!(written.status().unwrap().success());
    }
    one.kill();
    let _one = hosts.daemon("kvm1");
    for (name, pattern) in names.iter().zip(1..) {
        assert_eq!(
            hosts.content("kvm1", name),
            vec![pattern; 1 << 20],
            "{name}"
        );
    }
}

#[test]
fn lost_objects_come_back_with_what_another_host_writes() {
    let Some(hosts) = Hosts::new() else { return };
    let content = noise(31, IMAGE_BYTES);
    let image = hosts.scene.file("image", &content);
    let (mut one, _two) = (hosts.daemon("kvm1"), hosts.daemon("kvm2"));
    hosts.json("kvm1", &["volume", "import", "vm", &image]);
    wait_until("all blocks are published", || {
        hosts.run("kvm1", &["pool", "dedup"]).code == Some(0)
            && hosts.blocks("kvm1") == (0, IMAGE_BLOCKS)
    });
    hosts.scene.lose_data();
    let stat = hosts.json("kvm1", &["volume", "stat", "vm"]);
    let uri = stat["nbd_uri"].as_str().unwrap();
    let reads = (0..16).flat_map(|n| ["-c".to_owned(), format!("read {}k 256k", 256 * n)]);
    let mut qemu_io = Command::new("qemu-io");
    let read = qemu_io.args(["-f", "raw"]).args(reads).arg(uri).output();
    let read = read.unwrap();
    assert!(!read.status.success(), "{read:?}");
    let bad_blocks = |host: &str| {
        let listed = hosts.run(host, &["--format", "json", "pool", "scrub", "--list"]);
        listed.json()["bad_blocks"].as_array().unwrap().len() as u64
    };
    one.wait_for_line(&format!("all groups know {IMAGE_BLOCKS} bad blocks"));
    assert_eq!(bad_blocks("kvm1"), IMAGE_BLOCKS);
    hosts.json("kvm2", &["volume", "import", "same", &image]);
    assert_eq!(hosts.content("kvm2", "same"), content);
    wait_until("the blocks are repaired and shared", || {
        hosts.run("kvm2", &["pool", "dedup"]).code == Some(0)
            && hosts.blocks("kvm2") == (0, IMAGE_BLOCKS)
    });
    for (host, volume) in [("kvm1", "vm"), ("kvm2", "same")] {
        assert_eq!(hosts.content(host, volume), content, "{volume}");
        assert_eq!(bad_blocks(host), 0, "{host}");
    }
    assert_eq!(hosts.json("kvm1", &["pool", "check"])["findings"], json!(0));
}
