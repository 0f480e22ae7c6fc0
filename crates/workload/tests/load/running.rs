//! Whole loads, on memory and on targets that do not keep the data they are given.

use onefold_workload::{
    Connection, Found, Load, LoadProgress, LoadReport, MemoryTarget, Mode, Operation, Pattern,
    Share, Target, inspect, run, scaled,
};
use onefold_workload::{Distribution, WorkloadError, shipped_distributions};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BYTES: u64 = 4 << 20;

fn load(mode: Mode, pattern: Pattern) -> Load {
    Load {
        mode,
        pattern,
        request_bytes: 8192,
        jobs: 2,
        time: None,
        requests: None,
        rate: None,
        reads_back: true,
        compressible_percent: 20,
        seed: 5,
        share: Share { index: 0, count: 1 },
    }
}

fn put(target: &dyn Target, load: &Load) -> Result<LoadReport, WorkloadError> {
    put_until(target, load, &LoadProgress::default())
}

fn put_until(
    target: &dyn Target,
    load: &Load,
    progress: &LoadProgress,
) -> Result<LoadReport, WorkloadError> {
    let guests = Distribution::parse(shipped_distributions()[0].1).unwrap();
    put_contents(target, load, &guests, progress)
}

fn put_contents(
    target: &dyn Target,
    load: &Load,
    distribution: &Distribution,
    progress: &LoadProgress,
) -> Result<LoadReport, WorkloadError> {
    let region = load.region(4096, target.bytes())?;
    let scaled = scaled(distribution, region, load.share);
    run(target, region, &scaled, load, progress)
}

/// Counts writes, and mishandles one of them.
struct Faulty {
    memory: MemoryTarget,
    writes: AtomicU64,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Flip,
    Lose,
    Misplace,
    Fail,
}

/// The number of the write that goes wrong: the second one to its place.
const WRITE: u64 = 601;

/// The place of the write that goes wrong.
const PLACE: u64 = (WRITE - BYTES / 8192) * 8192;

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self {
            memory: MemoryTarget::new(BYTES).unwrap(),
            writes: AtomicU64::new(0),
            fault,
        }
    }
}

impl Target for Faulty {
    fn name(&self) -> String {
        "the faulty one".to_owned()
    }

    fn bytes(&self) -> u64 {
        BYTES
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(self))
    }
}

impl Connection for &Faulty {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        (&self.memory).read(bytes, at)
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut memory = &self.memory;
        if self.writes.fetch_add(1, Ordering::SeqCst) != WRITE {
            return memory.write(bytes, at);
        }
        match self.fault {
            Fault::Flip => {
                let mut bytes = bytes.to_vec();
                bytes[5000] ^= 0x40;
                memory.write(&bytes, at)
            }
            Fault::Lose => Ok(()),
            Fault::Misplace => memory.write(bytes, at ^ 8192),
            Fault::Fail => Err(io::Error::other("the disk is gone")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn every_mode_and_pattern_reads_what_it_has_written() {
    let patterns = [
        Pattern::Sequential,
        Pattern::Uniform,
        Pattern::NuRand { a: None },
        Pattern::Zipf { theta: 0.99 },
    ];
    for pattern in patterns {
        for (mode, phases) in [
            (Mode::Write, &["write", "read-back"][..]),
            (Mode::Read, &["fill", "read"]),
            (
                Mode::Mixed { read_percent: 70 },
                &["fill", "mixed", "read-back"],
            ),
        ] {
            let target = MemoryTarget::new(BYTES).unwrap();
            let report = put(&target, &load(mode, pattern)).unwrap();
            assert!(report.is_complete);
            let names: Vec<_> = report.phases.iter().map(|phase| phase.name).collect();
            assert_eq!(names, phases);
            let main = &report.phases[phases.len() - 1 - usize::from(mode != Mode::Read)];
            let [reads, writes, flushes] = [Operation::Read, Operation::Write, Operation::Flush]
                .map(|operation| main.measurement.of(operation).latency.len());
            assert_eq!(reads + writes, BYTES / 8192);
            assert_eq!(flushes, u64::from(mode != Mode::Read));
            match mode {
                Mode::Write => assert_eq!(reads, 0),
                Mode::Read => assert_eq!(writes, 0),
                Mode::Mixed { .. } => assert!((300..420).contains(&reads), "{reads}"),
            }
            let timeline = &main.measurement.timeline;
            let sum: u64 = timeline.bytes.iter().flatten().sum();
            assert_eq!(sum, BYTES);
        }
    }
}

/// The error of a load of unique contents on a target with this fault.
fn lost_on(fault: Fault) -> WorkloadError {
    let unique = "onefold distribution 1\nblock 4096\ncopies 1 9\nruns unique 1 9 9\n";
    let unique = Distribution::parse(unique).unwrap();
    let load = Load {
        jobs: 1,
        requests: Some(WRITE + 100),
        ..load(Mode::Write, Pattern::Sequential)
    };
    put_contents(
        &Faulty::new(fault),
        &load,
        &unique,
        &LoadProgress::default(),
    )
    .unwrap_err()
}

#[test]
fn what_a_target_does_not_keep_is_found_and_named() {
    let mismatch = |fault| match lost_on(fault) {
        WorkloadError::Mismatch(mismatch) => mismatch,
        other => panic!("{other}"),
    };
    let flipped = mismatch(Fault::Flip);
    assert_eq!(flipped.offset, PLACE + 4096);
    let damage = Found::Damage {
        bytes: 1,
        first: PLACE + 5000,
    };
    assert_eq!(flipped.found, damage);
    let words = flipped.to_string();
    assert!(
        words.contains("the faulty one") && words.contains("1 bytes differ"),
        "{words}"
    );
    // The content that was there before.
    let lost = mismatch(Fault::Lose);
    assert_eq!(lost.offset, PLACE);
    assert!(lost.to_string().contains("an older one"), "{lost}");
    // In the place before its own, which was written before.
    let misplaced = mismatch(Fault::Misplace);
    assert_eq!(misplaced.offset, PLACE - 8192);
    let words = format!("which was written at byte {PLACE}");
    assert!(misplaced.to_string().contains(&words), "{misplaced}");
    let failed = lost_on(Fault::Fail).to_string();
    let words = format!("cannot write 8192 bytes at byte {PLACE} of the faulty one");
    assert!(
        failed.contains(&words) && failed.contains("the disk is gone"),
        "{failed}"
    );
}

#[test]
fn a_nominal_rate_is_kept_and_lateness_counts() {
    let load = Load {
        rate: Some(2000.0),
        requests: Some(200),
        reads_back: false,
        ..load(Mode::Write, Pattern::Uniform)
    };
    let report = put(&MemoryTarget::new(BYTES).unwrap(), &load).unwrap();
    assert!(report.phases[0].elapsed >= Duration::from_micros(99_500));
    let slow = Slow(MemoryTarget::new(BYTES).unwrap());
    let load = Load {
        rate: Some(10_000.0),
        requests: Some(20),
        jobs: 1,
        ..load
    };
    let report = put(&slow, &load).unwrap();
    // Each takes 2 ms, and the last one was due 38 ms before it was begun.
    let latency = &report.phases[0].measurement.of(Operation::Write).latency;
    assert!(latency.max() >= 37_000_000, "{}", latency.max());
    assert!(latency.min() >= 1_900_000, "{}", latency.min());
}

/// Takes two milliseconds for a write.
struct Slow(MemoryTarget);

impl Target for Slow {
    fn name(&self) -> String {
        "slow".to_owned()
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(self))
    }
}

impl Connection for &Slow {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        (&self.0).read(bytes, at)
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        (&self.0).write(bytes, at)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn it_can_be_stopped() {
    let progress = LoadProgress::default();
    let target = Slow(MemoryTarget::new(BYTES).unwrap());
    let report = std::thread::scope(|scope| {
        let load = Load {
            time: Some(Duration::from_secs(3600)),
            ..load(Mode::Write, Pattern::Uniform)
        };
        let (target, progress) = (&target, &progress);
        let running = scope.spawn(move || put_until(target, &load, progress).unwrap());
        while progress.steps().0 < 10 {
            std::thread::yield_now();
        }
        progress.stop();
        running.join().unwrap()
    });
    assert!(!report.is_complete);
    assert_eq!(report.phases.len(), 1, "nothing is read back");
    assert!(
        !report.phases[0]
            .measurement
            .of(Operation::Write)
            .latency
            .is_empty()
    );
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fine = load(Mode::Write, Pattern::Uniform);
    for (load, bytes) in [
        (
            Load {
                request_bytes: 6000,
                ..fine.clone()
            },
            BYTES,
        ),
        (
            Load {
                request_bytes: 0,
                ..fine.clone()
            },
            BYTES,
        ),
        (
            Load {
                request_bytes: 128 << 20,
                ..fine.clone()
            },
            1 << 40,
        ),
        (
            Load {
                jobs: 0,
                ..fine.clone()
            },
            BYTES,
        ),
        (
            Load {
                jobs: 1025,
                ..fine.clone()
            },
            1 << 40,
        ),
        (fine.clone(), 16383),
        (fine.clone(), 1 << 60),
    ] {
        assert!(matches!(
            load.region(4096, bytes),
            Err(WorkloadError::Usage(_))
        ));
    }
    assert_eq!(
        fine.region(4096, 16384 * 3 + 5000).unwrap().bytes,
        16384 * 3
    );
    assert!(matches!(
        MemoryTarget::new(u64::MAX),
        Err(WorkloadError::Usage(_))
    ));
    for text in ["", "writes", "mixed:", "mixed:101", "read:5"] {
        assert!(text.parse::<Mode>().is_err(), "{text}");
    }
}

/// Any bytes as a target.
struct Bytes(Vec<u8>);

impl Target for Bytes {
    fn name(&self) -> String {
        "bytes".to_owned()
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn connect(&self) -> io::Result<Box<dyn Connection + '_>> {
        Ok(Box::new(self))
    }
}

impl Connection for &Bytes {
    fn read(&mut self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        bytes.copy_from_slice(&self.0[at as usize..at as usize + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_a_target_holds_is_named() {
    let look = |bytes: Bytes, len| inspect(&bytes, len, &LoadProgress::default());
    let len = 3 << 20;
    for (at, mark, words) in [
        (0, &b"LUKS\xba\xbe"[..], "LUKS"),
        (0, b"QFI\xfb", "qcow2"),
        (0, b"XFSB", "XFS"),
        (1080, b"\x53\xef", "ext4"),
        (65600, b"_BHRfS_M", "btrfs"),
        (512, b"LABELONE", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (512, b"EFI PART", "GPT"),
        (510, b"\x55\xaa", "MBR"),
        (70_001, b"x", "data at byte 70001"),
        (len - 1, b"x", "data at byte 3145727"),
    ] {
        let mut bytes = vec![0; len];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        let found = look(Bytes(bytes), len as u64).unwrap().unwrap();
        assert!(found.contains(words), "{found}");
    }
    assert_eq!(look(Bytes(vec![0; len]), len as u64).unwrap(), None);
    assert_eq!(look(Bytes(vec![0; 1536]), 1536).unwrap(), None);
    let mut beyond = vec![0; len];
    beyond[len - 1] = 1;
    assert_eq!(
        look(Bytes(beyond), 1 << 20).unwrap(),
        None,
        "only what is used"
    );
}
