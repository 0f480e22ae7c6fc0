//! Runs several commands concurrently on one repository, as from several hosts, and kills some at random.

use crate::backup::backups;
use crate::harness::{Scene, noise};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const HOSTS: usize = 3;
const PIECE_BYTES: usize = 64 << 10;

/// Backups per host; ONEFOLD_ROUNDS sets a higher number.
const ROUNDS: u64 = 6;

/// A generator of numbers below a limit, reproducible from a seed.
struct Draws(u64);

impl Draws {
    fn draw(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Runs a command, and kills it in one of four cases. Returns whether it succeeded.
fn run_or_kill(scene: &Scene, command: &[&str], draws: &mut Draws) -> bool {
    let mut child = scene.command(command).spawn().unwrap();
    if draws.draw(4) == 0 {
        thread::sleep(Duration::from_millis(draws.draw(150)));
        let _ = child.kill();
    }
    child.wait().unwrap().success()
}

/// Each host backs up its own disk, half of which is common to all, while one command after another shares,
/// forgets and prunes. Whichever commands are killed, every listed backup has the content of its disk.
#[test]
fn hosts_share_and_prune_at_once() {
    let mut scene = Scene::new();
    scene.set("ONEFOLD_REPOSITORY", scene.path("repository"));
    scene.ok(&["backup", "init", "--no-encryption"]);
    scene.set("ONEFOLD_NO_ENCRYPTION", "1".to_owned());
    let rounds = std::env::var("ONEFOLD_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let made: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::default();
    let (scene, made, is_over) = (&scene, &made, AtomicBool::new(false));
    thread::scope(|scope| {
        let hosts: Vec<_> = (0..HOSTS)
            .map(|n| scope.spawn(move || host(scene, n, rounds, made)))
            .collect();
        let cleaner = scope.spawn(|| {
            let mut draws = Draws(99);
            while !is_over.load(Ordering::Relaxed) {
                run_or_kill(scene, &["backup", "share", "--yes"], &mut draws);
                run_or_kill(
                    scene,
                    &["backup", "forget", "--keep-last", "3", "--yes"],
                    &mut draws,
                );
                run_or_kill(
                    scene,
                    &["backup", "prune", "--wasted", "0%", "--grace", "0", "--yes"],
                    &mut draws,
                );
            }
        });
        hosts.into_iter().for_each(|host| host.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        cleaner.join().unwrap();
    });
    let verified = scene.json(&["backup", "verify", "--data"]);
    assert_eq!(verified["findings"], json!([]));
    let made = made.lock().unwrap();
    let listed = backups(scene);
    for name in &listed {
        // A backup whose command was killed after publishing it is in the list, too.
        if let Some(content) = made.get(name) {
            let restored = scene.ok(&["backup", "restore", name, "-"]).stdout;
            assert!(restored == *content, "{name}");
        }
    }
    assert!(
        listed.iter().any(|name| made.contains_key(name)),
        "{listed:?}"
    );
    // No command blocks another.
    for command in [
        &["share", "--yes"][..],
        &["prune", "--wasted", "0%", "--yes"],
    ] {
        scene.ok(&[&["backup"], command].concat());
    }
    assert_eq!(
        scene.json(&["backup", "verify", "--data"])["findings"],
        json!([])
    );
}

fn host(scene: &Scene, n: usize, rounds: u64, made: &Mutex<BTreeMap<String, Vec<u8>>>) {
    let mut draws = Draws(n as u64);
    let mut disk = noise(1, 8 * PIECE_BYTES);
    disk.extend(noise(10 + n as u64, 8 * PIECE_BYTES));
    for round in 0..rounds {
        let at = draws.draw(16) as usize * PIECE_BYTES;
        // Some of the new content already comes from another host.
        let seed = 100 + draws.draw(3) + round % 2;
        disk[at..at + PIECE_BYTES].copy_from_slice(&noise(seed, PIECE_BYTES));
        let image = scene.file(&format!("disk-{n}"), &disk);
        let wanted = format!("vm-{n}={image}");
        let before = backups_of(scene, n);
        run_or_kill(scene, &["backup", "create", "--hurry", &wanted], &mut draws);
        let mut made = made.lock().unwrap();
        for name in backups_of(scene, n)
            .into_iter()
            .filter(|name| !before.contains(name))
        {
            made.insert(name, disk.clone());
        }
    }
}

fn backups_of(scene: &Scene, n: usize) -> Vec<String> {
    let begins = format!("vm-{n}@");
    let all = backups(scene).into_iter();
    all.filter(|name| name.starts_with(&begins)).collect()
}
