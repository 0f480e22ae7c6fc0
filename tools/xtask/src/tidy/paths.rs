//! No file may contain a path that exists only on the machine where it was written.

use super::SourceFile;

/// Directories under which people and machines keep working copies. Split, because this file is
/// scanned too.
const PREFIXES: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
];

pub(super) fn faults(files: &[SourceFile], home: Option<&str>) -> Vec<String> {
    // A home such as `/` would forbid every path.
    let home = home
        .filter(|home| home.len() > 3)
        .map(|home| format!("{home}/"));
    let prefixes: Vec<&str> = PREFIXES.iter().copied().chain(home.as_deref()).collect();
    let mut faults = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(prefix) = prefixes.iter().find(|prefix| names_path(line, prefix)) {
                let place = file.path.display();
                faults.push(format!(
                    "{place}:{}: names a path below {prefix}",
                    index + 1
                ));
            }
        }
    }
    faults
}

/// Whether an absolute path with this prefix is in the line; `tree/home/x` is a relative one.
fn names_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}>*/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn count(text: &str, home: Option<&str>) -> usize {
        faults(&[file("a", &text.replace('!', "/"))], home).len()
    }

    #[test]
    fn absolute_paths_of_a_machine_are_faults() {
        assert_eq!(count("see !work!main\nand `!root!x`", None), 2);
        assert_eq!(count("\"!home!me!x\"", None), 1);
        assert_eq!(count("=!srv!me!x", Some("/srv/me")), 1);
    }

    #[test]
    fn relative_and_other_paths_are_not() {
        assert_eq!(
            count("tree!root!x, !rootfs, !usr!home!x, ~!work!x", None),
            0
        );
        assert_eq!(count("!srv!me!x", Some("/")), 0);
    }
}
