//! Cycles between the files of a crate.
//!
//! File A imports file B if product code in A uses a name that B defines, by `use` or by a path
//! from `crate`, `self` or `super`, or calls a method that B has of a type that stands in several files
//! ([`super::methods`]). Re-exports are followed to the definition. A `mod` declaration,
//! a re-export, and a path `child::name` in the parent of `child` are the tree of modules and no
//! imports. Files that import each other in a circle can only be understood and tested together, so
//! the largest circle of a crate is limited.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::crates::{self, Crate, Found};
use super::methods::Methods;

/// The largest cycle that a crate may have.
const LIMIT: usize = 6;

/// The files of the crate's largest cycle; none if no two files import each other.
pub(super) fn largest<'a>(krate: &'a Crate, methods: &Methods) -> Vec<&'a Path> {
    let edges = imports(krate, methods);
    let components = components(krate.files.len(), &edges);
    let largest = components
        .into_iter()
        .filter(|files| files.len() > 1)
        .max_by_key(Vec::len);
    let mut paths: Vec<&Path> = largest
        .unwrap_or_default()
        .into_iter()
        .map(|file| krate.files[file].file.path.as_path())
        .collect();
    paths.sort_unstable();
    paths
}

/// A cycle above the limit.
pub(super) fn fault(krate: &str, cycle: &[&Path]) -> Option<String> {
    (cycle.len() > LIMIT).then(|| {
        let (measured, shown) = (cycle.len(), shown(cycle));
        format!("crate {krate}: {measured} files import each other, {LIMIT} may: {shown}")
    })
}

/// For display: the crate's files, without their common prefix.
pub(super) fn shown(cycle: &[&Path]) -> String {
    let name = |path: &&Path| {
        let path = path.iter().skip_while(|part| *part != "src").skip(1);
        path.collect::<std::path::PathBuf>().display().to_string()
    };
    cycle.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Which file imports which.
fn imports(krate: &Crate, methods: &Methods) -> BTreeSet<(usize, usize)> {
    let mut edges = BTreeSet::new();
    for (id, module) in krate.modules.iter().enumerate() {
        let mut paths = Paths {
            krate,
            methods,
            module: id,
            edges: &mut edges,
        };
        for import in module.imports().iter().filter(|import| !import.is_reexport) {
            paths.import(&import.path);
        }
        for item in module.items {
            // The imports of the module itself are handled above: paths may begin with their names.
            if !matches!(item, syn::Item::Use(_)) {
                paths.visit_item(item);
            }
        }
    }
    edges
}

struct Paths<'a> {
    krate: &'a Crate<'a>,
    methods: &'a Methods,
    module: usize,
    edges: &'a mut BTreeSet<(usize, usize)>,
}

impl Paths<'_> {
    fn import(&mut self, path: &[String]) {
        match self.krate.follow(self.module, path) {
            Some(Found::Module(module)) => self.edge(self.krate.modules[module].file),
            Some(Found::Item(file)) => self.edge(file),
            None => {}
        }
    }

    fn edge(&mut self, to: usize) {
        let from = self.krate.modules[self.module].file;
        if from != to {
            self.edges.insert((from, to));
        }
    }

    fn call(&mut self, name: &str) {
        if let Some(home) = self.methods.home(name) {
            self.edge(home);
        }
    }

    /// A path in code. Other first names of paths were imported by a `use`, or are children.
    fn path(&mut self, path: &[String]) {
        let first = path.first().map_or("", String::as_str);
        if ["crate", "self", "super"].contains(&first) || self.is_reexported(path) {
            self.import(path);
        }
        if let [.., _, name] = path {
            self.call(name);
        }
    }

    /// Whether this is a name that the module re-exports, and so uses itself.
    fn is_reexported(&self, path: &[String]) -> bool {
        let module = &self.krate.modules[self.module];
        let mut reexports = module.imports().iter().filter(|import| import.is_reexport);
        path.len() == 1 && reexports.any(|import| import.name == path.first().cloned())
    }

    /// The input of a macro or an attribute is not a syntax tree; paths in it are found as names
    /// joined by `::`.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut is_after_dot) = (0, false);
        for token in tokens {
            let follows_dot = std::mem::take(&mut is_after_dot);
            match token {
                TokenTree::Ident(name) => {
                    if follows_dot {
                        self.call(&name.to_string());
                    }
                    if colons != 2 {
                        self.end_of_path(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end_of_path(&mut path);
                    self.tokens(group.stream());
                }
                TokenTree::Punct(mark) => {
                    is_after_dot = mark.as_char() == '.';
                    self.end_of_path(&mut path);
                    colons = 0;
                }
                TokenTree::Literal(_) => {
                    self.end_of_path(&mut path);
                    colons = 0;
                }
            }
        }
        self.end_of_path(&mut path);
    }

    fn end_of_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.path(path);
        }
        path.clear();
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        // A module's items are visited as that module's.
        if !matches!(item, syn::Item::Mod(_)) && !crates::is_test_only(crates::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // In a function.
        for import in crates::leaves(item) {
            self.import(&import.path);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !crates::is_test_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.call(&call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // It restricts who may import, and imports nothing.
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path
                .segments
                .iter()
                .map(|segment| segment.ident.to_string());
            self.path(&names.collect::<Vec<_>>());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.tokens(list.tokens.clone());
        visit::visit_meta_list(self, list);
    }
}

/// Tarjan's strongly connected components.
fn components(nodes: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let mut search = Search {
        edges,
        next: 0,
        order: vec![None; nodes],
        lowest: vec![0; nodes],
        stack: Vec::new(),
        found: Vec::new(),
    };
    for node in 0..nodes {
        if search.order[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'a> {
    edges: &'a BTreeSet<(usize, usize)>,
    next: usize,
    /// When each node was visited.
    order: Vec<Option<usize>>,
    /// The earliest node on the stack that each one reaches.
    lowest: Vec<usize>,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        let order = self.next;
        self.next += 1;
        self.order[node] = Some(order);
        self.lowest[node] = order;
        self.stack.push(node);
        for (_, to) in self.edges.range((node, 0)..(node + 1, 0)) {
            match self.order[*to] {
                None => {
                    self.visit(*to);
                    self.lowest[node] = self.lowest[node].min(self.lowest[*to]);
                }
                Some(reached) if self.stack.contains(to) => {
                    self.lowest[node] = self.lowest[node].min(reached);
                }
                Some(_) => {}
            }
        }
        if self.lowest[node] == order {
            let at = self.stack.iter().position(|on| *on == node).unwrap_or(0);
            self.found.push(self.stack.split_off(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SourceFile, file};
    use super::*;

    fn largest_of(files: &[(&str, &str)]) -> String {
        let files: Vec<SourceFile> = files
            .iter()
            .map(|(path, text)| file(&format!("crates/a/src/{path}"), text))
            .collect();
        let mut faults = Vec::new();
        let parsed = crates::parse(&files, &mut faults);
        let crates = crates::crates(&parsed, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        shown(&largest(&crates[0], &Methods::of(&crates)[0]))
    }

    #[test]
    fn components_are_what_reaches_itself() {
        let edges = BTreeSet::from([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3), (5, 0)]);
        let mut found = components(6, &edges);
        for component in &mut found {
            component.sort_unstable();
        }
        found.sort();
        assert_eq!(found, [vec![0, 1, 2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn a_parent_that_only_declares_its_children_is_in_no_cycle() {
        let files = [
            ("lib.rs", "mod b; mod c; pub use b::B; pub struct L;"),
            ("b.rs", "use crate::L; use crate::C; pub struct B(L);"),
            ("c.rs", "use super::L; pub struct C;"),
        ];
        assert_eq!(largest_of(&files), "");
    }

    #[test]
    fn uses_paths_macros_and_attributes_are_imports() {
        let ways = [
            "use crate::c::C;",
            "use super::{c::{self}};",
            "fn f() { use crate::c::*; }",
            "fn f() -> super::c::C { todo!() }",
            "fn f() { println!(\"{:?}\", &[crate::c::C]); }",
            "#[arg(value_parser = crate::c::C)] struct S;",
            "use crate::Facade;",
            "fn f(c: <crate::c::C as Clone>::X) {}",
        ];
        for way in ways {
            let files = [
                ("lib.rs", "mod b; mod c; pub use c::C as Facade;"),
                ("b.rs", way),
                ("c.rs", "use crate::b; pub struct C;"),
            ];
            assert_eq!(largest_of(&files), "b.rs c.rs", "{way}");
        }
    }

    #[test]
    fn a_call_of_a_method_that_another_file_has_is_an_import() {
        for call in [
            "fn f(s: &S) { s.settle_all() }",
            "fn f(s: &S) { S::settle_all(s) }",
            "fn f(s: &S) { assert!(s.settle_all()) }",
            "impl S { fn f(&self) { self.settle_all() } }",
        ] {
            let b = format!("use crate::S; {call}");
            let files = [
                (
                    "lib.rs",
                    "mod b; mod c; pub struct S; impl S { fn new_one() {} }",
                ),
                ("b.rs", b.as_str()),
                (
                    "c.rs",
                    "use crate::b; use crate::S; impl S { fn settle_all(&self) { b::f(self) } }",
                ),
            ];
            assert_eq!(largest_of(&files), "b.rs c.rs", "{call}");
        }
    }

    #[test]
    fn tests_names_and_other_crates_are_no_imports() {
        let ways = [
            "#[cfg(test)] mod tests { use crate::c::C; }",
            "#[cfg(test)] use crate::c::C;",
            "struct S; impl S { #[cfg(test)] fn f() { crate::c::g() } }",
            "use ::c::C;",
            "use other::c::C;",
            "fn f(c: u8) -> u8 { c }",
            "/// Not [`crate::c::C`].\nstruct S;",
        ];
        for way in ways {
            let files = [
                ("lib.rs", "mod b; mod c;"),
                ("b.rs", way),
                ("c.rs", "use crate::b; pub struct C;"),
            ];
            assert_eq!(largest_of(&files), "", "{way}");
        }
    }

    #[test]
    fn a_reexport_is_an_import_where_its_own_file_uses_the_name() {
        let child = ("b.rs", "use super::L; pub struct B;");
        let facade = ("lib.rs", "mod b; pub use b::B; pub struct L;");
        assert_eq!(largest_of(&[facade, child]), "");
        let user = ("lib.rs", "mod b; pub use b::B; pub struct L(B);");
        assert_eq!(largest_of(&[user, child]), "b.rs lib.rs");
    }

    #[test]
    fn a_parent_may_reach_into_its_children() {
        let child = ("b.rs", "use super::L; pub struct B;");
        let parent = ("lib.rs", "mod b; pub struct L(b::B);");
        assert_eq!(largest_of(&[parent, child]), "");
        let importer = ("lib.rs", "mod b; use b::B; pub struct L(B);");
        assert_eq!(largest_of(&[importer, child]), "b.rs lib.rs");
    }

    #[test]
    fn what_only_a_parent_may_use_imports_nothing() {
        let parent = ("lib.rs", "mod b; use b::B; pub struct L(B);");
        let child = ("b.rs", "pub(super) struct B { pub(super) b: u8 }");
        assert_eq!(largest_of(&[parent, child]), "");
    }

    #[test]
    fn a_cycle_has_a_limit() {
        let path = Path::new("crates/a/src/b.rs");
        assert!(fault("a", &[path; LIMIT]).is_none());
        assert!(fault("a", &[]).is_none());
        assert!(fault("a", &[path; LIMIT + 1]).unwrap().contains("b.rs"));
    }
}
