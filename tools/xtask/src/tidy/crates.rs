//! The crates of the workspace as trees of modules, read from their sources. Test-only items are left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::SourceFile;

/// The directories that hold crates.
const PARENTS: [&str; 2] = ["crates", "tools"];

/// More re-exports than this mean that they form a circle.
const REEXPORTS_MAX: u32 = 16;

/// A Rust file and its syntax.
pub(super) struct Parsed<'a> {
    pub(super) file: &'a SourceFile,
    pub(super) syntax: syn::File,
}

/// Parses every Rust file. One that does not parse is a fault.
pub(super) fn parse<'a>(files: &'a [SourceFile], faults: &mut Vec<String>) -> Vec<Parsed<'a>> {
    let mut parsed = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        match syn::parse_file(&file.text) {
            Ok(syntax) => parsed.push(Parsed { file, syntax }),
            Err(error) => faults.push(format!("{}: does not parse: {error}", file.path.display())),
        }
    }
    parsed
}

/// A crate's library and binaries.
pub(super) struct Crate<'a> {
    /// The name of the crate's directory.
    pub(super) name: String,
    /// Part of the product, not a tool.
    pub(super) is_product: bool,
    /// Without those that only tests use.
    pub(super) files: Vec<&'a Parsed<'a>>,
    pub(super) modules: Vec<Module<'a>>,
}

/// A module, in a file of its own or inline.
pub(super) struct Module<'a> {
    /// The number of the file that has the module.
    pub(super) file: usize,
    pub(super) items: &'a [syn::Item],
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names defined here, without modules.
    definitions: Vec<String>,
    imports: Vec<Import>,
}

/// A leaf of a `use`.
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name in this module; none for a glob, or for `_`.
    pub(super) name: Option<String>,
    pub(super) is_glob: bool,
    /// Visible outside this module, which is then not the one that needs it.
    pub(super) is_reexport: bool,
}

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Module(usize),
    /// An item of this file.
    Item(usize),
}

/// The workspace's crates, in the order of their directories.
pub(super) fn crates<'a>(parsed: &'a [Parsed<'a>], faults: &mut Vec<String>) -> Vec<Crate<'a>> {
    let by_path: BTreeMap<&Path, &Parsed> = parsed
        .iter()
        .map(|parsed| (parsed.file.path.as_path(), parsed))
        .collect();
    let mut roots: BTreeMap<PathBuf, Vec<&Parsed>> = BTreeMap::new();
    for parsed in parsed {
        if let Some(directory) = crate_of_root(&parsed.file.path) {
            roots.entry(directory).or_default().push(parsed);
        }
    }
    let mut crates = Vec::new();
    for (directory, roots) in roots {
        let mut builder = Builder {
            by_path: &by_path,
            files: Vec::new(),
            modules: Vec::new(),
            faults,
        };
        for root in roots {
            let below = root.file.path.parent().unwrap_or(Path::new(""));
            builder.file(root, below.to_path_buf(), None);
        }
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        crates.push(Crate {
            name: name.into_owned(),
            is_product: directory.starts_with(PARENTS[0]),
            files: builder.files,
            modules: builder.modules,
        });
    }
    crates
}

/// The crate's directory, if this is the root of its library or of a binary.
pub(super) fn crate_of_root(path: &Path) -> Option<PathBuf> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts.as_slice() {
        [parent, name, "src", "lib.rs" | "main.rs"] | [parent, name, "src", "bin", _]
            if PARENTS.contains(parent) =>
        {
            Some(Path::new(parent).join(name))
        }
        _ => None,
    }
}

struct Builder<'a, 'b> {
    by_path: &'b BTreeMap<&'b Path, &'a Parsed<'a>>,
    files: Vec<&'a Parsed<'a>>,
    modules: Vec<Module<'a>>,
    faults: &'b mut Vec<String>,
}

impl<'a> Builder<'a, '_> {
    /// `below` is the directory where its modules are.
    fn file(&mut self, parsed: &'a Parsed<'a>, below: PathBuf, parent: Option<usize>) -> usize {
        self.files.push(parsed);
        self.module(self.files.len() - 1, &parsed.syntax.items, below, parent)
    }

    fn module(
        &mut self,
        file: usize,
        items: &'a [syn::Item],
        below: PathBuf,
        parent: Option<usize>,
    ) -> usize {
        let id = self.modules.len();
        self.modules.push(Module {
            file,
            items,
            parent,
            children: BTreeMap::new(),
            definitions: items.iter().filter_map(defined_name).collect(),
            imports: items.iter().flat_map(imports_of).collect(),
        });
        for item in items {
            let syn::Item::Mod(module) = item else {
                continue;
            };
            if is_test_only(&module.attrs) {
                continue;
            }
            let name = module.ident.to_string();
            if let Some(child) = self.child(id, &name, module, &below) {
                self.modules[id].children.insert(name, child);
            }
        }
        id
    }

    fn child(
        &mut self,
        parent: usize,
        name: &str,
        module: &'a syn::ItemMod,
        below: &Path,
    ) -> Option<usize> {
        let directory = below.join(name);
        if let Some((_, items)) = &module.content {
            let file = self.modules[parent].file;
            return Some(self.module(file, items, directory, Some(parent)));
        }
        let candidates = [below.join(format!("{name}.rs")), directory.join("mod.rs")];
        let by_path = self.by_path;
        let found = candidates
            .iter()
            .find_map(|path| by_path.get(path.as_path()));
        if found.is_none() {
            let user = self.files[self.modules[parent].file].file.path.display();
            self.faults.push(format!(
                "{user}: no file of module {name} was found, so its imports are not seen"
            ));
        }
        found.map(|parsed| self.file(parsed, directory, Some(parent)))
    }
}

impl Module<'_> {
    pub(super) fn imports(&self) -> &[Import] {
        &self.imports
    }
}

impl Crate<'_> {
    /// Follows a path that is written in a module, through re-exports too. None where it leads
    /// out of the crate.
    pub(super) fn follow(&self, module: usize, path: &[String]) -> Option<Found> {
        self.follow_path(module, path, REEXPORTS_MAX)
    }

    fn follow_path(&self, module: usize, path: &[String], depth: u32) -> Option<Found> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(self.root(module)),
            "self" => Found::Module(module),
            "super" => Found::Module(self.modules[module].parent?),
            name => self.find(module, name, depth)?,
        };
        for name in rest {
            let Found::Module(at) = found else {
                // A variant, a method, an associated type.
                break;
            };
            found = match name.as_str() {
                "super" => Found::Module(self.modules[at].parent?),
                "self" => found,
                // Items that a macro defines are not seen: they are in that module's file.
                name => self
                    .find(at, name, depth)
                    .unwrap_or(Found::Item(self.modules[at].file)),
            };
        }
        Some(found)
    }

    fn root(&self, module: usize) -> usize {
        match self.modules[module].parent {
            Some(parent) => self.root(parent),
            None => module,
        }
    }

    fn find(&self, at: usize, name: &str, depth: u32) -> Option<Found> {
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some(Found::Module(*child));
        }
        if module.definitions.iter().any(|defined| defined == name) {
            return Some(Found::Item(module.file));
        }
        let named = |import: &&Import| import.name.as_deref() == Some(name);
        if let Some(import) = module.imports.iter().find(named) {
            return self.follow_path(at, &import.path, depth);
        }
        let globs = module.imports.iter().filter(|import| import.is_glob);
        for glob in globs {
            if let Some(Found::Module(from)) = self.follow_path(at, &glob.path, depth)
                && from != at
                && let Some(found) = self.find(from, name, depth.checked_sub(1)?)
            {
                return Some(found);
            }
        }
        None
    }
}

fn defined_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    (!is_test_only(attributes(item))).then(|| name.to_string())
}

/// The leaves of a `use`; of any other item none.
fn imports_of(item: &syn::Item) -> Vec<Import> {
    match item {
        syn::Item::Use(item) if !is_test_only(&item.attrs) => leaves(item),
        _ => Vec::new(),
    }
}

/// The leaves of a `use` item. One that begins with `::` leads out of the crate.
pub(super) fn leaves(item: &syn::ItemUse) -> Vec<Import> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        let is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
        collect_leaves(&item.tree, &mut Vec::new(), is_reexport, &mut found);
    }
    found
}

fn collect_leaves(
    tree: &syn::UseTree,
    path: &mut Vec<String>,
    is_reexport: bool,
    found: &mut Vec<Import>,
) {
    let mut leaf = |last: Option<String>, name: Option<String>, is_glob| {
        let mut path = path.clone();
        path.extend(last);
        found.push(Import {
            path,
            name,
            is_glob,
            is_reexport,
        });
    };
    match tree {
        syn::UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            collect_leaves(&tree.tree, path, is_reexport, found);
            path.pop();
        }
        syn::UseTree::Name(tree) if tree.ident == "self" => {
            let name = path.last().cloned();
            leaf(None, name, false);
        }
        syn::UseTree::Name(tree) => {
            let name = tree.ident.to_string();
            leaf(Some(name.clone()), Some(name), false);
        }
        syn::UseTree::Rename(tree) => {
            let last = (tree.ident != "self").then(|| tree.ident.to_string());
            let name = (tree.rename != "_").then(|| tree.rename.to_string());
            leaf(last, name, false);
        }
        syn::UseTree::Glob(_) => leaf(None, None, true),
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                collect_leaves(tree, path, is_reexport, found);
            }
        }
    }
}

pub(super) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::ForeignMod(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::TraitAlias(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Features of the product's crates that only tests switch on.
const TEST_FEATURES: [&str; 4] = ["conformance", "shuttle", "simulated", "simulation"];

/// Whether a `cfg` leaves this out of everything but tests.
pub(super) fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Meta>()
                .is_ok_and(|condition| needs_test(&condition))
    })
}

fn needs_test(condition: &syn::Meta) -> bool {
    if condition.path().is_ident("test") {
        return true;
    }
    if let syn::Meta::NameValue(pair) = condition
        && pair.path.is_ident("feature")
        && let syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(feature),
            ..
        }) = &pair.value
    {
        return TEST_FEATURES.contains(&feature.value().as_str());
    }
    let syn::Meta::List(list) = condition else {
        return false;
    };
    let parts = list.parse_args_with(
        syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated,
    );
    let Ok(parts) = parts else {
        return false;
    };
    if list.path.is_ident("all") {
        parts.iter().any(needs_test)
    } else if list.path.is_ident("any") {
        !parts.is_empty() && parts.iter().all(needs_test)
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    /// The file that a path leads to, of a crate of these files.
    fn leads_to(files: &[(&str, &str)], path: &str) -> Option<String> {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(path, text)| file(&format!("crates/a/src/{path}"), text))
            .collect();
        let mut faults = Vec::new();
        let parsed = parse(&files, &mut faults);
        let crates = crates(&parsed, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        let path: Vec<String> = path.split("::").map(str::to_owned).collect();
        let of_file = |file: usize| {
            let path = &crates[0].files[file].file.path;
            path.strip_prefix("crates/a/src")
                .unwrap()
                .display()
                .to_string()
        };
        crates[0].follow(0, &path).map(|found| match found {
            Found::Module(module) => of_file(crates[0].modules[module].file),
            Found::Item(file) => of_file(file),
        })
    }

    #[test]
    fn modules_are_found_beside_below_and_inside_their_parents() {
        let files = [
            (
                "lib.rs",
                "mod b; mod c; mod inner { pub struct I; mod deep; }",
            ),
            ("b.rs", "mod d; pub struct B;"),
            ("b/d.rs", "pub struct D;"),
            ("c/mod.rs", "pub mod e;"),
            ("c/e.rs", "pub enum E { V }"),
            ("inner/deep.rs", "pub struct P;"),
        ];
        let leads = |path| leads_to(&files, path).unwrap();
        assert_eq!(leads("crate::b::B"), "b.rs");
        assert_eq!(leads("b::d::D"), "b/d.rs");
        assert_eq!(leads("self::c::e::E::V"), "c/e.rs");
        assert_eq!(leads("crate::inner::I"), "lib.rs");
        assert_eq!(leads("crate::inner::deep::P"), "inner/deep.rs");
        assert_eq!(leads("crate::b::made_by_a_macro"), "b.rs");
        assert_eq!(leads_to(&files, "std::io::Error"), None);
    }

    #[test]
    fn reexports_lead_to_the_definition() {
        let files = [
            (
                "lib.rs",
                "mod b; pub use b::{C as X, self as y}; pub(crate) use b::*;",
            ),
            ("b.rs", "mod c; pub use self::c::*; pub struct B;"),
            ("b/c.rs", "use super::B; pub struct C;"),
        ];
        let leads = |path| leads_to(&files, path).unwrap();
        assert_eq!(leads("crate::X"), "b/c.rs");
        assert_eq!(leads("crate::C"), "b/c.rs");
        assert_eq!(leads("crate::B"), "b.rs");
        assert_eq!(leads("crate::y::C"), "b/c.rs");
    }

    #[test]
    fn reexports_in_a_circle_come_to_an_end() {
        let files = [
            ("lib.rs", "mod b; pub use b::X;"),
            ("b.rs", "pub use crate::X;"),
        ];
        assert!(leads_to(&files, "crate::b::X").is_some());
    }

    #[test]
    fn a_module_without_a_file_is_a_fault_unless_it_is_a_test() {
        let files = [file(
            "tools/t/src/main.rs",
            "mod gone; #[cfg(test)] mod tests;",
        )];
        let mut faults = Vec::new();
        let parsed = parse(&files, &mut faults);
        crates(&parsed, &mut faults);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("module gone"), "{faults:?}");
    }

    #[test]
    fn what_needs_tests_is_test_only() {
        let test_only = |attribute: &str| {
            let text = format!("#[{attribute}] struct S;");
            is_test_only(attributes(&syn::parse_str(&text).unwrap()))
        };
        assert!(test_only("cfg(test)"));
        assert!(test_only("cfg(all(test, not(feature = \"x\")))"));
        assert!(!test_only("cfg(any(test, feature = \"x\"))"));
        assert!(!test_only("cfg(not(test))"));
        // A double is no product code.
        assert!(test_only("cfg(feature = \"simulated\")"));
        assert!(test_only("cfg(any(test, feature = \"conformance\"))"));
        assert!(!test_only("cfg(feature = \"openapi\")"));
        assert!(!test_only("cfg(not(feature = \"shuttle\"))"));
        assert!(!test_only("derive(Debug)"));
    }

    #[test]
    fn a_file_that_does_not_parse_is_a_fault() {
        let files = [file("a.rs", "fn (")];
        let mut faults = Vec::new();
        assert!(parse(&files, &mut faults).is_empty());
        assert_eq!(faults.len(), 1);
    }
}
