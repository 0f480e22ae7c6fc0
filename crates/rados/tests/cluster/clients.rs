//! Clients: their connection and their rights.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use onefold_rados::{Client, ConnectError, ConnectOptions};

use crate::{POOL, Space, ceph, conf, kind, options};

#[test]
fn a_client_knows_itself_and_its_cluster() {
    let Some(space) = Space::new("client") else {
        return;
    };
    assert!(
        space.client.version().major >= 3,
        "{}",
        space.client.version()
    );
    assert!(space.client.addresses().unwrap().contains("127.0.0.1"));
    assert_ne!(space.client.instance_id(), space.other().0.instance_id());
    space.client.statistics().unwrap();
    space.client.wait_for_latest_osdmap().unwrap();
    assert_eq!(
        kind(space.client.pool("no-such-pool", "")),
        ErrorKind::NotFound
    );
    assert!(space.pool.takes_overwrites().unwrap());
}

#[test]
fn a_client_that_cannot_connect_says_why() {
    let Some(conf) = conf() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = options(&conf);
    let error_of = |options: &ConnectOptions| {
        let error = Client::connect(options).err().expect("an error");
        println!("{error}");
        error
    };
    let with_file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let with = |settings: &[(&str, &str)]| {
        let mut options = options.clone();
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        options.settings = settings.collect();
        options.timeout = Duration::from_secs(2);
        options
    };
    let of_file = |path: PathBuf| ConnectOptions {
        conf_file: Some(path),
        ..with(&[])
    };

    let missing = error_of(&of_file(directory.path().join("none")));
    assert!(matches!(missing, ConnectError::ConfMissing { .. }));
    let unreadable = error_of(&of_file(directory.path().to_path_buf()));
    assert!(matches!(unreadable, ConnectError::ConfUnreadable { .. }));
    let setting = error_of(&with(&[("no_such_option", "1")]));
    assert!(matches!(setting, ConnectError::Setting { .. }));
    let no_monitors = error_of(&of_file(with_file("empty.conf", "[global]\n")));
    assert!(
        matches!(no_monitors, ConnectError::NoMonitors { .. }),
        "{no_monitors:?}"
    );
    let unreachable = error_of(&with(&[("mon_host", "[v2:127.0.0.1:1/0]")]));
    assert!(
        matches!(unreachable, ConnectError::Unreachable { seconds: 2, .. }),
        "{unreachable:?}"
    );

    let no_keyring = error_of(&with(&[("keyring", "/nonexistent/a,/nonexistent/b")]));
    assert!(
        matches!(no_keyring, ConnectError::KeyringMissing { .. }),
        "{no_keyring:?}"
    );
    let key = "AQBBXkhlAAAAABAAyYJzEoHCCbZ2DpYmCXiOJw==";
    let wrong = with_file("keyring", &format!("[client.admin]\n\tkey = {key}\n"));
    let wrong = error_of(&with(&[("keyring", wrong.to_str().unwrap())]));
    assert!(
        matches!(wrong, ConnectError::PermissionDenied { .. }),
        "{wrong:?}"
    );
    let stranger = ConnectOptions {
        user: Some("stranger".to_owned()),
        ..with(&[])
    };
    let stranger = error_of(&stranger);
    assert!(
        matches!(stranger, ConnectError::PermissionDenied { .. }),
        "{stranger:?}"
    );
}

#[test]
fn a_user_can_be_kept_to_a_namespace() {
    let Some(space) = Space::new("caps") else {
        return;
    };
    let name = format!("client.{}", space.name);
    let osd = format!("allow rwx pool={POOL} namespace={}", space.name);
    let arguments = [
        "auth",
        "get-or-create",
        &name,
        "mon",
        "profile rbd",
        "osd",
        &osd,
    ];
    let Some(keyring) = ceph(&space.conf, &arguments) else {
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, keyring).unwrap();
    let user = Client::connect(&ConnectOptions {
        user: Some(space.name.clone()),
        settings: vec![(
            "keyring".to_owned(),
            file.path().to_str().unwrap().to_owned(),
        )],
        ..options(&space.conf)
    })
    .unwrap();
    let pool = user.pool(POOL, &space.name).unwrap();
    pool.write_now("o", 0, b"x").unwrap();
    pool.lock_exclusive("o", "owner", "cookie", "", None)
        .unwrap();
    assert_eq!(pool.objects().unwrap().count(), 1);
    let elsewhere = user.pool(POOL, "elsewhere").unwrap();
    assert_eq!(
        kind(elsewhere.write_now("o", 0, b"x")),
        ErrorKind::PermissionDenied
    );
    // The user may fence other clients.
    let (victim, _) = space.other();
    user.blocklist_add(&victim.addresses().unwrap(), 600)
        .unwrap();
    ceph(&space.conf, &["auth", "rm", &name]);
}
