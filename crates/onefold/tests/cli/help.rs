//! Help, hints, aliases and errors for new users.

use crate::harness::{Scene, run};

#[test]
fn a_refusal_points_to_the_help_of_its_command() {
    for (arguments, points_to) in [
        (&["--nonsense"][..], "; see 'onefold --help'"),
        (
            &["volume", "create"],
            "; see 'onefold volume create --help'",
        ),
        (
            &["volume", "rm", "--nonsense"],
            "; see 'onefold volume delete --help'",
        ),
        (
            &["--pool", "volume", "pool", "create", "x", "--size", "y"],
            "; see 'onefold pool create --help'",
        ),
    ] {
        run(arguments).is_refusal(2, &[points_to]);
    }
}

#[test]
fn a_slip_of_the_pen_is_understood() {
    for (arguments, meant) in [
        (&["volume", "lits"][..], "did you mean 'list'?"),
        (
            &["volume", "create", "x", "--sise", "1G"],
            "did you mean '--size'?",
        ),
        (
            &["pool", "create", "x", "--index", "hahs"],
            "did you mean 'hash'?",
        ),
        (
            &["ls"],
            "did you mean 'volume list' or 'snapshot list' or 'job list' or 'group list' or 'host list' or 'backup list'?",
        ),
        (
            &["status"],
            "did you mean 'pool stat' or 'volume stat' or 'index stat'?",
        ),
    ] {
        run(arguments).is_refusal(2, &[meant]);
    }
}

#[test]
fn the_short_help_leaves_out_what_only_ceph_needs() {
    for command in [&["job", "list"][..], &["volume", "create"], &[]] {
        let help = |option| {
            let asked = run(&[command, &[option]].concat());
            String::from_utf8(asked.stdout).unwrap()
        };
        let (short, long) = (help("-h"), help("--help"));
        for option in ["--ceph-conf", "--ceph-user", "--patience", "--run "] {
            assert!(!short.contains(option), "{command:?}: {short}");
            assert!(long.contains(option), "{command:?}: {long}");
        }
        assert!(short.contains("--pool"), "{short}");
    }
}

#[test]
fn other_programs_words_are_understood() {
    let scene = Scene::new();
    scene.ok(&["volume", "create", "v", "--size", "1M"]);
    scene.ok(&["snapshot", "create", "v@s"]);
    for (word, other) in [
        (["volume", "list"], "ls"),
        (["snapshot", "list"], "ls"),
        (["pool", "stat"], "show"),
        (["pool", "stat"], "status"),
        (["pool", "stat"], "info"),
        (["index", "stat"], "status"),
    ] {
        let expected = scene.ok(&word).stdout;
        assert_eq!(scene.ok(&[word[0], other]).stdout, expected, "{word:?}");
    }
    let shown = scene.ok(&["volume", "show", "v"]).stdout;
    assert_eq!(shown, scene.ok(&["volume", "stat", "v"]).stdout);
    scene.ok(&["snapshot", "rm", "v@s", "--yes"]);
    scene.ok(&["volume", "rm", "v", "--yes"]);
}

#[test]
fn sizes_are_what_their_units_say() {
    let scene = Scene::new();
    for (name, size, bytes) in [
        ("a", "1.5G", 3u64 << 29),
        ("b", "1GiB", 1 << 30),
        // A whole number of sectors, but not of blocks.
        ("c", "1GB", 1_000_000_000),
        // Not a whole number of sectors: rounded up to whole blocks.
        ("d", "1.3M", 1_363_968),
    ] {
        let made = scene.json(&["volume", "create", name, "--size", size]);
        assert_eq!(made["size_bytes"], bytes, "{size}");
    }
    for command in [
        &["volume", "create"][..],
        &["pool", "create"],
        &["serve"],
        &["analyze"],
    ] {
        let help = run(&[command, &["--help"]].concat()).stdout;
        let help = String::from_utf8(help).unwrap();
        assert!(help.contains("GB, TB powers of 1000"), "{help}");
        assert!(help.contains("\nGlobal options:\n"), "{help}");
    }
}

#[test]
fn a_refused_value_is_refused_with_the_limit() {
    let scene = Scene::with_pool(&["--size", "16M"]);
    let other = scene.path("other");
    for (arguments, limit) in [
        (
            &["pool", "create", &other, "--size", "1"][..],
            "has 8 KiB to 4 PiB",
        ),
        (
            &["pool", "create", &other, "--size", "15E"],
            "has 8 KiB to 4 PiB",
        ),
        (
            &["pool", "create", &other, "--log-size", "1K"],
            "256 KiB to 1 GiB",
        ),
        (&["pool", "resize", "--size", "15E"], "has 8 KiB to"),
        (&["serve", "--memory", "63M"], "at least 64 MiB"),
    ] {
        let refused = scene.run(arguments);
        assert!(matches!(refused.code, Some(1 | 2)), "{refused:?}");
        assert!(refused.stderr.contains(limit), "{refused:?}");
    }
    assert!(!std::fs::exists(other).unwrap());
}

#[test]
fn the_version_says_which_commit_and_which_formats() {
    for flag in ["--version", "-V"] {
        let outcome = run(&[flag]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let text = String::from_utf8(outcome.stdout).unwrap();
        let release = env!("CARGO_PKG_VERSION");
        let begins = format!("onefold {release} (commit ");
        assert!(text.starts_with(&begins), "{text}");
        let ends = "; writes pool format 1.2, repository format 2.0)\n";
        assert!(text.ends_with(ends), "{text}");
    }
}

#[test]
fn a_restore_asks_for_any_of_its_targets_and_memory_has_a_least_size() {
    run(&["backup", "restore", "web@1"]).is_refusal(2, &["a new file", "--volume", "--into"]);
    for verb in ["create", "restore", "share"] {
        run(&["backup", verb, "--memory", "1K"]).is_refusal(2, &["--memory", "at least 1 MiB"]);
    }
}
