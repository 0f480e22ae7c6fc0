//! Waiting for holders of leases whose processes are not visible from here: watches the heartbeats of all leases that a
//! command needs at the same time, prints one message, and ends when the user interrupts.

use std::thread;
use std::time::{Duration, Instant};

use onefold_format::backup::{Lease, ObjectName};

use crate::disk::{joined, split};
use crate::error::Result;
use crate::lease::HEARTBEAT;
use crate::objects::Objects;
use crate::process::is_running;
use crate::waiting::Waiting;

/// The poll interval for heartbeats.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The poll interval for an interruption.
const PAUSE: Duration = Duration::from_millis(50);

/// A holder whose heartbeat is watched.
struct Watched {
    /// The index of the holder's lease in the caller's list.
    at: usize,
    who: String,
    folder: String,
    sign: Option<Vec<u8>>,
}

/// Finds out which holders of leases are alive.
pub(crate) struct Holders<'a> {
    objects: &'a Objects,
    waiting: &'a Waiting,
}

impl<'a> Holders<'a> {
    pub(crate) fn new(objects: &'a Objects, waiting: &'a Waiting) -> Self {
        Self { objects, waiting }
    }

    /// For each lease, its living holder for messages; `None` if the holder is dead, or has released the lease.
    ///
    /// # Errors
    ///
    /// `Interrupted`.
    pub(crate) fn living(&self, leases: &[ObjectName]) -> Result<Vec<Option<String>>> {
        let (mut living, mut watched) = (vec![None; leases.len()], Vec::new());
        for (at, name) in leases.iter().enumerate() {
            let lease = lease_in(self.objects, *name);
            let who = lease.as_ref().map_or_else(
                || "another process".to_owned(),
                |lease| {
                    let (process, host) = (lease.holder.process, &lease.host);
                    format!("process {process} on {host} ({})", lease.doing)
                },
            );
            match lease.and_then(|lease| is_running(lease.holder)) {
                Some(true) => living[at] = Some(who),
                Some(false) => {}
                None => {
                    let folder = split(&name.path()).0.to_owned();
                    let sign = self.heartbeat(&folder);
                    watched.push(Watched {
                        at,
                        who,
                        folder,
                        sign,
                    });
                }
            }
        }
        self.watch(watched, &mut |alive| living[alive.at] = Some(alive.who))?;
        Ok(living)
    }

    /// Watches all heartbeats at the same time.
    fn watch(&self, mut watched: Vec<Watched>, found: &mut dyn FnMut(Watched)) -> Result<()> {
        let Some(first) = watched.first() else {
            return Ok(());
        };
        let others = match watched.len() {
            1 => String::new(),
            2 => " and of one other".to_owned(),
            all => format!(" and of {} others", all - 1),
        };
        let whose = format!("{}{others}", first.who);
        let (waiting, lease_timeout) = (self.waiting, self.waiting.lease_timeout());
        let seconds = lease_timeout.as_secs_f64();
        waiting.say(&format!(
            "waiting up to {seconds:.0} s for a sign of life of {whose}"
        ));
        let (began, mut looked) = (Instant::now(), Instant::now());
        while !watched.is_empty() {
            waiting
                .check_interrupted(format_args!("while waiting for a sign of life of {whose}"))?;
            let is_over = began.elapsed() >= lease_timeout;
            if is_over || looked.elapsed() >= POLL_INTERVAL.min(lease_timeout / 4) {
                looked = Instant::now();
                let (alive, silent) = watched.into_iter().partition(|holder| {
                    let sign = self.heartbeat(&holder.folder);
                    sign.is_some() && sign != holder.sign
                });
                watched = silent;
                // A holder that has released its lease counts as dead.
                watched
                    .retain(|holder| !matches!(self.objects.root().kind(&holder.folder), Ok(None)));
                Vec::into_iter(alive).for_each(&mut *found);
            }
            if is_over {
                return Ok(());
            }
            thread::sleep(PAUSE.min(lease_timeout / 4));
        }
        Ok(())
    }

    fn heartbeat(&self, folder: &str) -> Option<Vec<u8>> {
        self.objects.folder().read(&joined(folder, HEARTBEAT)).ok()
    }
}

/// Whether the holder of a lease was a process of this machine that has ended.
pub(crate) fn is_known_dead(objects: &Objects, lease: ObjectName) -> bool {
    lease_in(objects, lease).is_some_and(|lease| is_running(lease.holder) == Some(false))
}

fn lease_in(objects: &Objects, name: ObjectName) -> Option<Lease> {
    let content = objects.read_sealed(name).ok()?;
    Lease::decode(&content).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RepositoryErrorKind;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    use onefold_format::backup::{BackupNumber, Source, SourceId};

    use crate::access::Access;
    use crate::lease::holder_of;
    use crate::reader::Readers;
    use crate::repository::Repository;
    use crate::writer::Writer;

    const LONG: Duration = Duration::from_secs(1 << 20);

    fn repository(folder: &Path) -> (Repository, Vec<SourceId>) {
        let root = folder.join("r");
        let (repository, _) = Repository::init(&root, &Access::Open, 1).unwrap();
        let sources = ["a", "b", "c"].map(|name| {
            let source = Source {
                name: name.to_owned(),
                domain: String::new(),
                block_size: 4096,
                origin: None,
            };
            repository.add_source(source).unwrap().id
        });
        // Opened again, as another process would: leases outlive this value.
        (
            Repository::open(&root, &Access::Open).unwrap(),
            sources.to_vec(),
        )
    }

    impl Repository {
        /// Changes the holder of a lease to a process on another machine.
        fn move_away(&self, name: ObjectName) {
            let content = self.objects().read_sealed(name).unwrap();
            let mut lease = Lease::decode(&content).unwrap();
            lease.holder.boot[0] ^= 1;
            let bytes = self.objects().sealed(name, lease.encode()).unwrap();
            self.objects().put_over(name, &bytes).unwrap();
        }

        fn held_elsewhere(&self, sources: &[SourceId]) -> Vec<Writer<'_>> {
            let held = sources.iter().map(|source| {
                let writer = self.writer(*source, "test").unwrap();
                let holder = holder_of(self.objects().root(), *source).unwrap();
                self.move_away(ObjectName::Lease(*source, holder));
                writer
            });
            held.collect()
        }
    }

    /// Covers leases and readers of all sources.
    #[test]
    fn all_dead_processes_are_waited_for_at_the_same_time() {
        let folder = tempfile::tempdir().unwrap();
        let (mut repository, sources) = repository(folder.path());
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        let waiting = Waiting::new(
            move |whom| heard.lock().unwrap().push(whom.to_owned()),
            || false,
        );
        repository.wait_with(waiting.with_lease_timeout(Duration::from_millis(100)));
        let other = Repository::open(&folder.path().join("r"), &Access::Open).unwrap();
        let held = other.held_elsewhere(&sources);
        let taken = repository.writers(&sources, "test").unwrap();
        assert_eq!(taken.iter().filter(|writer| writer.is_ok()).count(), 3);
        let host = crate::host::host_name();
        let process = std::process::id();
        let first = format!("a sign of life of process {process} on {host} (test) and of 2 others");
        let told_of_leases = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!(told_of_leases, [format!("waiting up to 0 s for {first}")]);
        drop((held, taken));

        let backups: Vec<_> = (1..=4)
            .map(|n| (sources[n % 3], BackupNumber(n as u64)))
            .collect();
        let mut readings = Vec::new();
        for (source, backup) in &backups {
            readings.push(other.reading(*source, *backup, "test").unwrap());
            let reader = Readers::new(other.objects(), &Waiting::default())
                .of(*source, *backup)
                .unwrap()[0];
            other.move_away(ObjectName::Reader(*source, *backup, reader));
        }
        for forgotten in repository.forget_all(&backups).unwrap() {
            forgotten.unwrap();
        }
        let told_of_readers = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!(told_of_readers.len(), 1, "{told_of_readers:?}");
        assert!(told_of_readers[0].ends_with("and of 3 others"));
    }

    #[test]
    fn an_interruption_ends_the_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (mut repository, sources) = repository(folder.path());
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let (told, asked) = (Arc::clone(&is_interrupted), Arc::clone(&is_interrupted));
        let waiting = Waiting::new(
            move |_| told.store(true, Ordering::Relaxed),
            move || asked.load(Ordering::Relaxed),
        );
        repository.wait_with(waiting.with_lease_timeout(LONG));
        let other = Repository::open(&folder.path().join("r"), &Access::Open).unwrap();
        let held = other.held_elsewhere(&sources);
        let interrupted = [
            repository.writers(&sources, "test").map(drop).unwrap_err(),
            repository.writer(sources[0], "test").map(drop).unwrap_err(),
        ];
        for error in interrupted {
            assert_eq!(error.kind(), RepositoryErrorKind::Interrupted, "{error}");
        }
        // The holders keep their leases.
        held[0].begin_backup().unwrap();
    }

    #[test]
    fn a_lease_that_is_given_back_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (mut repository, sources) = repository(folder.path());
        let other = Repository::open(&folder.path().join("r"), &Access::Open).unwrap();
        let lease = {
            let held = other.held_elsewhere(&sources[..1]);
            let holder = holder_of(other.objects().root(), sources[0]).unwrap();
            std::mem::forget(held);
            ObjectName::Lease(sources[0], holder)
        };
        let waiting = Waiting::new(
            move |_| {
                let folder = split(&lease.path()).0.to_owned();
                other.objects().root().rename(&folder, "gone").unwrap();
            },
            || false,
        );
        repository.wait_with(waiting.with_lease_timeout(LONG));
        repository.writer(sources[0], "test").unwrap();
    }
}
