//! What functions of a crate call, read from its sources.

use std::collections::HashMap;
use std::path::Path;

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Meta, Token, UseTree};

/// A function that is compiled into the crate, and not for tests alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    /// Where it is, below the crate's `src`.
    pub(crate) file: String,
    /// `module::name` or `Type::name`.
    pub(crate) name: String,
    /// What it calls or names: paths as `use` completes them (`rustix::mm::munmap`, `crate::sys::memfd`,
    /// `Mapping::shared`), and methods after the last name of what they are called on (`provider.free`).
    pub(crate) uses: Vec<String>,
    /// The failpoints in it.
    pub(crate) failpoints: Vec<String>,
}

impl Function {
    /// Whether it uses a function that tables name as `name` or `Type::name`.
    pub(crate) fn uses(&self, wanted: &str) -> bool {
        self.uses.iter().any(|used| {
            let method = wanted.split_once("::").filter(|(owner, _)| owner.starts_with(char::is_uppercase));
            used == wanted
                || used.ends_with(&format!("::{wanted}"))
                || method.is_some_and(|(_, method)| used.ends_with(&format!(".{method}")))
        })
    }
}

/// All functions below a folder of sources.
pub(crate) fn folder(source: &Path) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(source).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_for_tests(&name) {
                functions.extend(text(&name, &std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    functions.sort_by(|one, other| (&one.file, &one.name).cmp(&(&other.file, &other.name)));
    functions
}

/// Files that only `#[cfg(test)]`, `#[cfg(fuzzing)]` or a feature for tests reads.
fn is_for_tests(file: &str) -> bool {
    ["tests.rs", "model.rs", "fuzz.rs"].iter().any(|name| file.ends_with(name))
        || ["/tests/", "/model/"].iter().any(|folder| file.contains(folder))
        || file.starts_with("conformance")
}

/// All functions of one file.
pub(crate) fn text(file: &str, source: &str) -> Vec<Function> {
    let parsed = syn::parse_file(source).unwrap_or_else(|error| panic!("{file}: {error}"));
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    // The system calls of a crate are one module, in however many files.
    let module = if path.starts_with("sys/") { "sys" } else { path.rsplit('/').next().unwrap() };
    let module = module.to_owned();
    let mut reader = Reader { file: file.to_owned(), module, ..Reader::default() };
    reader.visit_file(&parsed);
    reader.done
}

#[derive(Default)]
struct Reader {
    file: String,
    module: String,
    /// What names mean, as `use` says.
    names: HashMap<String, String>,
    /// The type whose `impl` this is.
    owner: Option<String>,
    open: Vec<Function>,
    done: Vec<Function>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
        let text = list.tokens.to_string();
        list.path.is_ident("cfg") && (text == "test" || text.contains("all (test"))
    })
}

impl Reader {
    fn learn(&mut self, before: &str, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.learn(&format!("{before}{}::", path.ident), &path.tree),
            UseTree::Name(name) if name.ident == "self" => {
                let path = before.trim_end_matches("::");
                self.names.insert(path.rsplit("::").next().unwrap().to_owned(), path.to_owned());
            }
            UseTree::Name(name) => {
                self.names.insert(name.ident.to_string(), format!("{before}{}", name.ident));
            }
            UseTree::Rename(rename) => {
                self.names.insert(rename.rename.to_string(), format!("{before}{}", rename.ident));
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.learn(before, tree)),
            UseTree::Glob(_) => {}
        }
    }

    fn function(&mut self, name: &str, read: impl FnOnce(&mut Self)) {
        let name = format!("{}::{name}", self.owner.as_ref().unwrap_or(&self.module));
        self.open.push(Function { file: self.file.clone(), name, ..Function::default() });
        read(self);
        self.done.extend(self.open.pop());
    }

    fn path(&mut self, path: &syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let first = match (names[0].as_str(), &self.owner) {
            ("Self", Some(owner)) => owner.clone(),
            (name, _) => match self.names.get(name) {
                Some(path) => path.clone(),
                None if names.len() == 1 => format!("{}::{name}", self.module),
                None => name.to_owned(),
            },
        };
        let rest = &names[1..];
        let full = [&[first], rest].concat().join("::");
        if let Some(function) = self.open.last_mut() {
            function.uses.push(full);
        }
    }
}

fn last_name(expression: &Expr) -> String {
    match expression {
        Expr::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        Expr::Field(field) => match &field.member {
            syn::Member::Named(name) => Some(name.to_string()),
            syn::Member::Unnamed(_) => None,
        },
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Reference(reference) => Some(last_name(&reference.expr)),
        Expr::Paren(paren) => Some(last_name(&paren.expr)),
        Expr::Try(tried) => Some(last_name(&tried.expr)),
        _ => None,
    }
    .unwrap_or_default()
}

impl<'a> Visit<'a> for Reader {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.learn("", &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !is_test(&item.attrs) {
            let outer = std::mem::replace(&mut self.module, item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module = outer;
        }
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let outer = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, item);
        self.owner = outer;
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        if !is_test(&item.attrs) {
            let owner = self.owner.take();
            self.function(&item.sig.ident.to_string(), |reader| visit::visit_item_fn(reader, item));
            self.owner = owner;
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.function(&item.sig.ident.to_string(), |reader| visit::visit_impl_item_fn(reader, item));
        }
    }

    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        self.path(&path.path);
        visit::visit_expr_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let used = format!("{}.{}", last_name(&call.receiver), call.method);
        if let Some(function) = self.open.last_mut() {
            function.uses.push(used);
        }
        visit::visit_expr_method_call(self, call);
    }

    /// What a macro is given, if that is expressions.
    fn visit_macro(&mut self, made: &'a syn::Macro) {
        if made.path.is_ident("failpoint")
            && let (Ok(name), Some(function)) = (made.parse_body::<syn::LitStr>(), self.open.last_mut())
        {
            function.failpoints.push(name.value());
            return;
        }
        if let Ok(given) = made.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated) {
            for expression in &given {
                // The parsed text is not of the file's life time; a reader of its own hands over what it found.
                let mut inner = Reader {
                    file: self.file.clone(),
                    module: self.module.clone(),
                    names: self.names.clone(),
                    owner: self.owner.clone(),
                    open: vec![Function::default()],
                    done: Vec::new(),
                };
                visit_owned(&mut inner, expression);
                if let (Some(function), Some(found)) = (self.open.last_mut(), inner.open.pop()) {
                    function.uses.extend(found.uses);
                    function.failpoints.extend(found.failpoints);
                }
            }
        }
    }
}

fn visit_owned(reader: &mut Reader, expression: &Expr) {
    reader.visit_expr(expression);
}
