//! The counts of one file, without its test-only items.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::crates::{Parsed, attributes, is_test_only};

/// The numbers of one file.
#[derive(Debug, Default)]
pub(super) struct Measures {
    pub(super) lines: usize,
    /// Lines that hold nothing but a comment.
    pub(super) comment_lines: usize,
    pub(super) functions: Vec<Function>,
    /// Items and methods that are `pub`.
    pub(super) public: usize,
    /// Public items and methods without documentation.
    pub(super) undocumented: usize,
    /// Items, methods and fields that are `pub(crate)`.
    pub(super) crate_wide: usize,
}

/// A function with a body.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    /// The line of the signature.
    pub(super) line: usize,
    /// From the signature to the closing brace.
    pub(super) lines: usize,
}

pub(super) fn of(parsed: &Parsed) -> Measures {
    let mut counter = Counter::default();
    counter.visit_file(&parsed.syntax);
    let mut measures = counter.measures;
    for (index, line) in parsed.file.text.lines().enumerate() {
        let is_test = |span: &(usize, usize)| (span.0..=span.1).contains(&(index + 1));
        if !counter.tests.iter().any(is_test) {
            measures.lines += 1;
            measures.comment_lines += usize::from(line.trim_start().starts_with("//"));
        }
    }
    measures
}

#[derive(Default)]
struct Counter {
    measures: Measures,
    /// First and last lines of test-only items.
    tests: Vec<(usize, usize)>,
}

impl Counter {
    fn function(&mut self, signature: &syn::Signature, body: Span) {
        let line = signature.span().start().line;
        self.measures.functions.push(Function {
            name: signature.ident.to_string(),
            line,
            lines: body.end().line + 1 - line,
        });
    }

    fn visible(&mut self, visibility: &syn::Visibility, attributes: &[syn::Attribute]) {
        let is_documented = attributes.iter().any(|of| of.path().is_ident("doc"));
        match visibility {
            syn::Visibility::Public(_) => {
                self.measures.public += 1;
                self.measures.undocumented += usize::from(!is_documented);
            }
            syn::Visibility::Restricted(_) if is_crate_wide(visibility) => {
                self.measures.crate_wide += 1;
            }
            _ => {}
        }
    }

    fn test(&mut self, span: Span) {
        self.tests.push((span.start().line, span.end().line));
    }
}

fn is_crate_wide(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Restricted(to) if to.path.is_ident("crate"))
}

/// The comment of items that have content; modules and re-exports only give a path.
fn visibility(item: &syn::Item) -> Option<&syn::Visibility> {
    match item {
        syn::Item::Const(item) => Some(&item.vis),
        syn::Item::Enum(item) => Some(&item.vis),
        syn::Item::Fn(item) => Some(&item.vis),
        syn::Item::Static(item) => Some(&item.vis),
        syn::Item::Struct(item) => Some(&item.vis),
        syn::Item::Trait(item) => Some(&item.vis),
        syn::Item::Type(item) => Some(&item.vis),
        syn::Item::Union(item) => Some(&item.vis),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_test_only(attributes(item)) {
            self.test(item.span());
            return;
        }
        if let Some(visibility) = visibility(item) {
            self.visible(visibility, attributes(item));
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if is_test_only(&function.attrs) {
            self.test(function.span());
            return;
        }
        self.visible(&function.vis, &function.attrs);
        self.function(&function.sig, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.function(&function.sig, body.span());
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.measures.crate_wide += usize::from(is_crate_wide(&field.vis));
        visit::visit_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{crates, file};
    use super::*;

    fn measured(text: &str) -> Measures {
        let mut faults = Vec::new();
        let files = [file("a.rs", text)];
        let parsed = crates::parse(&files, &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        of(&parsed[0])
    }

    #[test]
    fn methods_and_nested_functions_count() {
        let text = "
trait T { fn declared(); fn default() {} }
impl T for S {
    fn method()
    {
        fn nested() {}
    }
}
";
        let found = measured(text).functions;
        let found: Vec<_> = found
            .iter()
            .map(|function| (function.name.as_str(), function.line, function.lines))
            .collect();
        assert_eq!(
            found,
            [("default", 2, 1), ("method", 4, 4), ("nested", 6, 1)]
        );
    }

    #[test]
    fn tests_do_not_count_wherever_they_are() {
        let text = "
// A comment.
#[cfg(test)]
use x::y;

struct S;
impl S {
    /// Documented.
    #[cfg(test)]
    pub(crate) fn in_tests() {}
}

#[cfg(all(test, feature = \"x\"))]
mod tests {
    pub fn f() {}
}
";
        let found = measured(text);
        assert_eq!((found.lines, found.comment_lines), (7, 1));
        assert_eq!(
            (found.functions.len(), found.public, found.crate_wide),
            (0, 0, 0)
        );
    }

    #[test]
    fn what_is_visible_counts_once() {
        let text = "
pub mod m { pub use a::B; }
/// Documented.
pub struct S { pub a: u8, pub(crate) b: u8, pub(super) c: u8 }
pub(crate) enum E { V { x: u8 } }
impl S { pub fn f(&self) {} pub(crate) fn g(&self) {} fn h(&self) {} }
impl T for S { fn t() {} }
pub const C: u8 = 0;
";
        let found = measured(text);
        assert_eq!((found.public, found.undocumented), (3, 2));
        assert_eq!(found.crate_wide, 3);
    }
}
