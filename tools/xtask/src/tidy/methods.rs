//! Inherent methods of types whose `impl` blocks stand in several files of a crate.
//!
//! Calling such a method is a tie between two files as an import is, though it names no module: the type is
//! imported from the file that defines it, but the method may be in another one. [`super::cycles`] counts these ties.
//! A tie is a call, by `.name(` or `Type::name(`, of a method whose name is unambiguous: the crate
//! defines it once, no other crate has a method of that name, and it has an underscore or ten letters.

use std::collections::{BTreeMap, BTreeSet};

use super::crates::{self, Crate, Found};

/// Files that the inherent methods of a type may stand in.
const FILES_MAX: usize = 8;

/// Types with many methods, as `crate::Type`: the files in which they stand, which may be more than that, and the
/// number of their methods. Both may only go down.
const KNOWN: [(&str, usize, usize); 4] = [
    ("journal::Journal", 7, 53),
    ("store::Pool", 1, 20),
    ("store::Store", 7, 69),
    ("store::Volume", 8, 90),
];

/// Shorter names without an underscore say too little.
const TELLING_LETTERS: usize = 10;

/// Names that types of the standard library have, too.
const STANDARD: [&str; 4] = ["copy_from_slice", "is_empty", "split_at", "take_while"];

/// The name of a type, and the file that defines it, as far as it is known.
type Type = (String, Option<usize>);

/// The inherent methods of a crate.
#[derive(Debug, Default)]
pub(super) struct Methods {
    /// By type: the files of its methods, and how many these are.
    types: BTreeMap<Type, (BTreeSet<usize>, usize)>,
    /// By name: the types that have it, and the files where they have it.
    homes: BTreeMap<String, Vec<(Type, usize)>>,
    /// Names that other crates have as well.
    elsewhere: BTreeSet<String>,
}

impl Methods {
    /// The methods of each crate, in the crates' order.
    pub(super) fn of(crates: &[Crate]) -> Vec<Methods> {
        let mut all: Vec<Methods> = crates.iter().map(Methods::collect).collect();
        let with_receiver: Vec<BTreeSet<String>> = crates.iter().map(with_receiver).collect();
        for (number, methods) in all.iter_mut().enumerate() {
            let others = with_receiver.iter().enumerate();
            let others = others.filter(|(other, _)| *other != number);
            methods.elsewhere = others
                .flat_map(|(_, names)| names.iter().cloned())
                .collect();
        }
        all
    }

    fn collect(krate: &Crate) -> Methods {
        let mut methods = Methods::default();
        for (id, module) in krate.modules.iter().enumerate() {
            for block in module.items.iter().filter_map(inherent) {
                let Some(of) = type_of(krate, id, &block.self_ty) else {
                    continue;
                };
                let (files, count) = methods.types.entry(of.clone()).or_default();
                files.insert(module.file);
                for function in functions(block) {
                    *count += 1;
                    let home = (of.clone(), module.file);
                    let homes = methods.homes.entry(function.sig.ident.to_string());
                    homes.or_default().push(home);
                }
            }
        }
        methods
    }

    /// The file of a method, if calling it is a tie.
    pub(super) fn home(&self, name: &str) -> Option<usize> {
        let [(of, file)] = &self.homes.get(name)?[..] else {
            return None;
        };
        let is_telling = name.contains('_') || name.len() >= TELLING_LETTERS;
        let is_spread = self.types.get(of).is_some_and(|(files, _)| files.len() > 1);
        let is_common = STANDARD.contains(&name) || self.elsewhere.contains(name);
        (is_telling && is_spread && !is_common).then_some(*file)
    }

    /// A line for each type that stands in several files, the widest first: files and methods.
    pub(super) fn remark(&self, krate: &str) -> Option<String> {
        let mut spread: Vec<_> = self.types.iter().collect();
        spread.retain(|(_, (files, _))| files.len() > 2);
        spread.sort_by_key(|(_, (files, count))| std::cmp::Reverse((files.len(), *count)));
        let named = spread.iter().take(4).map(|((name, _), (files, count))| {
            format!("{name} {count} methods in {} files", files.len())
        });
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| format!("{krate}: {}", named.join(", ")))
    }

    /// Types that stand in too many files.
    pub(super) fn faults(&self, krate: &str) -> Vec<String> {
        let faults = self.types.iter().filter_map(|((name, _), (files, count))| {
            let full = format!("{krate}::{name}");
            let known = KNOWN.iter().find(|(known, ..)| *known == full);
            let (files, count) = (files.len(), *count);
            match known {
                Some((_, files_max, count_max)) if files > *files_max || count > *count_max => {
                    Some(format!(
                        "{full} has {count} methods in {files} files; it had {count_max} in {files_max}, and these may only go down"
                    ))
                }
                Some((_, files_max, count_max)) if files < *files_max || count < *count_max => {
                    Some(format!(
                        "{full} has {count} methods in {files} files: set the limit to that in methods.rs"
                    ))
                }
                None if files > FILES_MAX => Some(format!(
                    "{full} has methods in {files} files, {FILES_MAX} may: give a part of them an owner of its own"
                )),
                _ => None,
            }
        });
        faults.collect()
    }
}

fn inherent(item: &syn::Item) -> Option<&syn::ItemImpl> {
    match item {
        syn::Item::Impl(block) if block.trait_.is_none() => {
            (!crates::is_test_only(&block.attrs)).then_some(block)
        }
        _ => None,
    }
}

fn type_of(krate: &Crate, module: usize, of: &syn::Type) -> Option<Type> {
    let syn::Type::Path(path) = of else {
        return None;
    };
    let names = path.path.segments.iter();
    let names: Vec<String> = names.map(|segment| segment.ident.to_string()).collect();
    let file = match krate.follow(module, &names) {
        Some(Found::Item(file)) => Some(file),
        _ => None,
    };
    Some((names.last()?.clone(), file))
}

fn functions(block: &syn::ItemImpl) -> impl Iterator<Item = &syn::ImplItemFn> {
    block.items.iter().filter_map(|item| match item {
        syn::ImplItem::Fn(function) if !crates::is_test_only(&function.attrs) => Some(function),
        _ => None,
    })
}

/// Names of all functions of a crate that have a receiver, including trait functions.
fn with_receiver(krate: &Crate) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let items = krate.modules.iter().flat_map(|module| module.items);
    for item in items {
        let signatures: Vec<&syn::Signature> = match item {
            syn::Item::Impl(block) => functions(block).map(|function| &function.sig).collect(),
            syn::Item::Trait(item) => item
                .items
                .iter()
                .filter_map(|item| match item {
                    syn::TraitItem::Fn(function) => Some(&function.sig),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        let with_receiver = signatures
            .into_iter()
            .filter(|signature| signature.receiver().is_some());
        names.extend(with_receiver.map(|signature| signature.ident.to_string()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::{SourceFile, file};
    use super::*;

    fn methods_of<T>(files: &[(&str, &str)], look: impl Fn(&Methods) -> T) -> T {
        let files: Vec<SourceFile> = files.iter().map(|(path, text)| file(path, text)).collect();
        let mut faults = Vec::new();
        let parsed = crates::parse(&files, &mut faults);
        let crates = crates::crates(&parsed, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        look(&Methods::of(&crates)[0])
    }

    #[test]
    fn a_call_is_a_tie_where_the_name_tells_what_is_called() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod b; pub struct S; pub struct T; impl S { fn run_one(&self) {} } impl T { fn alone_here(&self) {} }",
            ),
            (
                "crates/a/src/b.rs",
                "use crate::S; impl S { fn settle(&self) {} fn settle_all(&self) {} fn twice_here(&self) {} fn split_at(&self) {} fn known_there(&self) {} #[cfg(test)] fn of_tests(&self) {} } struct U; impl U { fn twice_here(&self) {} }",
            ),
            ("crates/c/src/lib.rs", "trait C { fn known_there(&self); }"),
        ];
        for (name, is_tie) in [
            ("settle_all", true),
            ("run_one", true),
            ("settle", false),
            ("alone_here", false),
            ("twice_here", false),
            ("split_at", false),
            ("known_there", false),
            ("of_tests", false),
            ("nowhere", false),
        ] {
            assert_eq!(
                methods_of(&files, |methods| methods.home(name).is_some()),
                is_tie,
                "{name}"
            );
        }
    }

    #[test]
    fn a_type_may_stand_in_so_many_files_and_no_more() {
        for files in [FILES_MAX, FILES_MAX + 1] {
            let modules: String = (1..files).map(|n| format!("mod m{n};")).collect();
            let root = format!("{modules} pub struct S; impl S {{ fn of_root(&self) {{}} }}");
            let children: Vec<(String, String)> = (1..files)
                .map(|n| {
                    let text = format!("use crate::S; impl S {{ fn m{n}(&self) {{}} }}");
                    (format!("crates/a/src/m{n}.rs"), text)
                })
                .collect();
            let mut all = vec![("crates/a/src/lib.rs", root.as_str())];
            all.extend(
                children
                    .iter()
                    .map(|(path, text)| (path.as_str(), text.as_str())),
            );
            let faults = methods_of(&all, |methods| methods.faults("a"));
            assert_eq!(faults.len(), files - FILES_MAX, "{faults:?}");
        }
    }
}
