//! Long functions and files, for the reviewer: printed, not forbidden, because a table or a
//! decision in one piece can be clearer than its parts.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::SourceFile;

const FUNCTION_LINES_MAX: usize = 70;

/// Without the tests at a file's end.
const FILE_LINES_MAX: usize = 800;

/// One line for each function and file that is too long. A file that is not Rust is a fault.
pub(super) fn remarks(files: &[SourceFile], faults: &mut Vec<String>) -> Vec<String> {
    let mut remarks = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let place = file.path.display();
        let parsed = match syn::parse_file(&file.text) {
            Ok(parsed) => parsed,
            Err(error) => {
                faults.push(format!("{place}: does not parse: {error}"));
                continue;
            }
        };
        let lines = lines_before_tests(&parsed, &file.text);
        if lines > FILE_LINES_MAX {
            remarks.push(format!("{place}: {lines} lines before its tests"));
        }
        let mut functions = Functions { long: Vec::new() };
        functions.visit_file(&parsed);
        for (name, line, lines) in functions.long {
            remarks.push(format!("{place}:{line}: function {name} has {lines} lines"));
        }
    }
    remarks
}

fn lines_before_tests(file: &syn::File, text: &str) -> usize {
    let tests = file.items.iter().find_map(|item| match item {
        syn::Item::Mod(module) if is_test_only(&module.attrs) => Some(module.span()),
        _ => None,
    });
    match tests {
        Some(span) => span.start().line.saturating_sub(1),
        None => text.lines().count(),
    }
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|condition| condition == "test")
    })
}

struct Functions {
    /// Name, line and length.
    long: Vec<(String, usize, usize)>,
}

impl Functions {
    fn look_at(&mut self, signature: &syn::Signature, body: Span) {
        let first = signature.span().start().line;
        let lines = body.end().line + 1 - first;
        if lines > FUNCTION_LINES_MAX {
            self.long.push((signature.ident.to_string(), first, lines));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.look_at(&function.sig, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.look_at(&function.sig, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.look_at(&function.sig, body.span());
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    fn remarks_of(text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        let remarks = remarks(&[file("a.rs", text)], &mut faults);
        assert!(faults.is_empty(), "{faults:?}");
        remarks
    }

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    ();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_may_have_as_many_lines_as_the_limit() {
        assert!(remarks_of(&function("f", FUNCTION_LINES_MAX)).is_empty());
        let found = remarks_of(&format!("\n{}", function("f", FUNCTION_LINES_MAX + 1)));
        assert_eq!(found, ["a.rs:2: function f has 71 lines"]);
    }

    #[test]
    fn methods_and_nested_functions_count_and_tests_do_not() {
        let long = function("g", 80);
        assert_eq!(
            remarks_of(&format!("struct S;\nimpl S {{\n{long}}}\n")).len(),
            1
        );
        assert_eq!(remarks_of(&format!("trait T {{\n{long}}}\n")).len(), 1);
        assert_eq!(remarks_of(&format!("fn f() {{\n{long}}}\n")).len(), 2);
        assert!(remarks_of(&format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")).is_empty());
    }

    #[test]
    fn a_file_counts_until_its_tests() {
        let body = "const A: u8 = 0;\n".repeat(FILE_LINES_MAX);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert!(remarks_of(&format!("{body}{tests}")).is_empty());
        assert_eq!(remarks_of(&format!("{body}\n{tests}")).len(), 1);
        assert!(remarks_of(&body).is_empty());
        assert_eq!(remarks_of(&format!("{body}//\n")).len(), 1);
    }

    #[test]
    fn a_file_that_does_not_parse_is_a_fault() {
        let mut faults = Vec::new();
        remarks(&[file("a.rs", "fn (")], &mut faults);
        assert_eq!(faults.len(), 1);
    }
}
