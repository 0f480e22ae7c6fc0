//! Processes that are killed leave names that are not durable. The next processes use them, and then the host dies.

use onefold_repository::{Access, Repository, simulation};

use crate::{Facts, MemoryDisk, SOURCES, World, commands, die_and_check, folder, seeds};

/// What a killed process left is used by the next ones, before the host dies.
#[test]
fn processes_may_be_killed_before_the_host_dies() {
    for seed in seeds(60) {
        let folder = folder();
        let root = folder.path().join("r");
        std::fs::create_dir(&root).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        simulation::restart_host();
        simulation::begin(None);
        Repository::init(&root, &Access::Open, 1).unwrap();
        let first = simulation::changes();
        let mut world = World::open(&root, Facts::default()).unwrap();
        for _ in 0..3 {
            simulation::fail_at(simulation::changes() + random.usize(..150));
            commands(&mut world, &mut random);
            simulation::restart_host();
            world = world.reopened(&root);
        }
        let noted = simulation::end();
        let what = format!("seed {seed}");
        die_and_check(&what, &noted, first, &world.history, &root, &mut random);
    }
}

/// An interrupted `share` leaves popular packs whose names are not durable. `prune` moves blocks to them, and then
/// the host dies.
#[test]
fn what_an_interrupted_share_left_may_be_moved_to() {
    for seed in seeds(3) {
        let folder = folder();
        let root = folder.path().join("r");
        std::fs::create_dir(&root).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fails_in = 0;
        loop {
            std::fs::remove_dir_all(&root).unwrap();
            std::fs::create_dir(&root).unwrap();
            simulation::restart_host();
            simulation::begin(None);
            Repository::init(&root, &Access::Open, 1).unwrap();
            let mut world = World::open(&root, Facts::default()).unwrap();
            for n in 0..SOURCES {
                world.create(&[(n, MemoryDisk((1..70).collect()))]).unwrap();
            }
            simulation::fail_at(simulation::changes() + fails_in);
            let is_done = world.share().is_ok();
            simulation::restart_host();
            world.prune().unwrap();
            let what = format!("seed {seed}, change {fails_in} failed");
            world.check(&what);
            let noted = simulation::end();
            let after = folder.path().join("after");
            let mut facts = world.facts.clone();
            drop(world);
            for _ in 0..3 {
                std::fs::create_dir(&after).unwrap();
                let all = noted.count();
                noted
                    .after_death(all, &root, &after, &mut |end| random.usize(..end))
                    .unwrap();
                simulation::restart_host();
                let mut world = World::open(&after, facts.clone()).unwrap();
                world.check(&what);
                facts = world.facts.clone();
                world.share().unwrap();
                world.prune().unwrap();
                world.check(&what);
                world.check_distinct(&what);
                std::fs::remove_dir_all(&after).unwrap();
            }
            if is_done {
                break;
            }
            fails_in += 1;
        }
        assert!(fails_in > 10, "{fails_in}");
    }
}

/// A killed backup leaves folders and packs whose names are not durable. The next backup uses them, and then the host
/// dies.
#[test]
fn what_a_killed_backup_left_may_be_referred_to() {
    for seed in seeds(3) {
        let folder = folder();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fails_in = 0;
        loop {
            let root = folder.path().join(format!("r{fails_in}"));
            std::fs::create_dir(&root).unwrap();
            simulation::restart_host();
            simulation::begin(None);
            Repository::init(&root, &Access::Open, 1).unwrap();
            simulation::fail_at(simulation::changes() + fails_in);
            // Content that both have is popular.
            let disks = [
                (0, MemoryDisk((1..70).collect())),
                (1, MemoryDisk((30..90).collect())),
            ];
            let (mut is_done, mut facts) = (false, Facts::default());
            if let Ok(mut killed) = World::open(&root, facts.clone()) {
                is_done = killed.create(&disks).is_ok();
                facts = killed.facts;
            }
            simulation::restart_host();
            let mut world = World::open(&root, facts).unwrap();
            let what = format!("seed {seed}, change {fails_in} failed");
            world.create(&disks).unwrap();
            world.check(&what);
            let noted = simulation::end();
            let (all, facts) = (noted.count(), world.facts.clone());
            drop(world);
            for _ in 0..8 {
                let after = folder.path().join("after");
                std::fs::create_dir(&after).unwrap();
                noted
                    .after_death(all, &root, &after, &mut |end| random.usize(..end))
                    .unwrap();
                simulation::restart_host();
                let mut world = World::open(&after, facts.clone()).unwrap();
                world.check(&what);
                std::fs::remove_dir_all(&after).unwrap();
            }
            if is_done {
                break;
            }
            fails_in += 1;
        }
        assert!(fails_in > 30, "{fails_in}");
    }
}

/// A killed prune leaves packs of two generations, the newer one with a name that is not durable. The next prune
/// removes the older one, and then the host dies.
#[test]
fn what_a_killed_prune_left_may_be_pruned_again() {
    for seed in seeds(1) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut fails_in = 0;
        loop {
            let folder = folder();
            let root = folder.path().join("r");
            std::fs::create_dir(&root).unwrap();
            simulation::restart_host();
            simulation::begin(None);
            Repository::init(&root, &Access::Open, 1).unwrap();
            let mut world = World::open(&root, Facts::default()).unwrap();
            for contents in [1..70, 40..90] {
                world
                    .create(&[(0, MemoryDisk(contents.collect()))])
                    .unwrap();
            }
            world.forget((0, 1)).unwrap();
            simulation::fail_at(simulation::changes() + fails_in);
            let is_done = world.prune().is_ok();
            simulation::restart_host();
            let killed = simulation::changes();
            let mut world = world.reopened(&root);
            world.prune().unwrap();
            let noted = simulation::end();
            let all = noted.count();
            for death in (killed..=all).flat_map(|death| [death; 4]) {
                let what =
                    format!("seed {seed}, change {fails_in} failed, death after {death} of {all}");
                let after = folder.path().join("after");
                std::fs::create_dir(&after).unwrap();
                noted
                    .after_death(death, &root, &after, &mut |end| random.usize(..end))
                    .unwrap();
                simulation::restart_host();
                World::open(&after, world.facts.clone())
                    .unwrap()
                    .check(&what);
                std::fs::remove_dir_all(&after).unwrap();
            }
            if is_done {
                break;
            }
            fails_in += 1;
        }
        assert!(fails_in > 10, "{fails_in}");
    }
}
