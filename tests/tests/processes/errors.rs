//! `docs/errors.md` lists every public error with its text, as the sources have it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, Fields, ImplItem, Item, ItemEnum, ItemImpl, LitStr, Meta, Pat, Stmt, Type};

const PAGE: &str = "docs/errors.md";
const FOLDERS: [&str; 3] = ["crates", "providers", "pools"];
const BEGIN: &str = "<!-- The rest is generated. -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Adds the sources below a folder, in order.
fn add_sources(folder: &Path, sources: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            add_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(path);
        }
    }
}

/// One variant of an error: when it occurs, and its text.
#[derive(Debug, Default)]
struct Row {
    when: String,
    text: String,
}

/// The tables of one crate, by the name of the enumeration.
#[derive(Debug, Default)]
struct Errors {
    enums: Vec<(String, Vec<(String, Row)>)>,
    /// Texts of enumerations whose `Display` is written by hand.
    displays: BTreeMap<String, BTreeMap<String, String>>,
}

/// Returns the first paragraph of a doc comment.
fn documentation(attributes: &[Attribute]) -> String {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        let Meta::NameValue(value) = &attribute.meta else { continue };
        let Expr::Lit(literal) = &value.value else { continue };
        let syn::Lit::Str(text) = &literal.lit else { continue };
        let line = text.value().trim().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    lines.join(" ")
}

/// Returns the first string literal in tokens.
fn first_text(tokens: proc_macro2::TokenStream) -> Option<String> {
    tokens.into_iter().find_map(|token| match token {
        proc_macro2::TokenTree::Literal(literal) => {
            syn::parse_str::<LitStr>(&literal.to_string()).ok().map(|text| text.value())
        }
        proc_macro2::TokenTree::Group(group) => first_text(group.stream()),
        _ => None,
    })
}

/// Returns the text of `#[error(..)]`.
fn derived_text(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("error"))?;
    let Meta::List(list) = &attribute.meta else { return None };
    first_text(list.tokens.clone()).or_else(|| Some("(as the inner error)".to_owned()))
}

fn is_public(item: &ItemEnum) -> bool {
    matches!(item.vis, syn::Visibility::Public(_))
}

impl Errors {
    fn add_enum(&mut self, item: &ItemEnum) {
        let is_derived = item.variants.iter().any(|variant| derived_text(&variant.attrs).is_some());
        let name = item.ident.to_string();
        if !is_public(item) || !(is_derived || name.ends_with("Error")) {
            return;
        }
        let rows = item.variants.iter().map(|variant| {
            // The field of a transparent variant has the documentation.
            let inner = match &variant.fields {
                Fields::Unnamed(fields) => fields.unnamed.first().map(|field| documentation(&field.attrs)),
                _ => None,
            };
            let when = [documentation(&variant.attrs), inner.unwrap_or_default()].concat();
            (variant.ident.to_string(), Row { when, text: derived_text(&variant.attrs).unwrap_or_default() })
        });
        self.enums.push((name, rows.collect()));
    }

    fn add_display(&mut self, item: &ItemImpl) {
        let is_display = item
            .trait_
            .as_ref()
            .is_some_and(|(_, path, _)| path.segments.last().is_some_and(|last| last.ident == "Display"));
        let Type::Path(of) = &*item.self_ty else { return };
        let Some(name) = of.path.segments.last().filter(|_| is_display) else { return };
        for method in &item.items {
            let ImplItem::Fn(method) = method else { continue };
            let Some(Stmt::Expr(Expr::Match(all), _)) = method.block.stmts.last() else { continue };
            for arm in &all.arms {
                let path = match &arm.pat {
                    Pat::Path(pattern) => &pattern.path,
                    Pat::Struct(pattern) => &pattern.path,
                    Pat::TupleStruct(pattern) => &pattern.path,
                    _ => continue,
                };
                let Some(variant) = path.segments.last() else { continue };
                let text = first_text(quote::ToTokens::to_token_stream(&arm.body));
                let texts = self.displays.entry(name.ident.to_string()).or_default();
                texts.insert(variant.ident.to_string(), text.unwrap_or_default());
            }
        }
    }

    fn add(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Enum(item) => self.add_enum(item),
                Item::Impl(item) => self.add_display(item),
                Item::Mod(item) => self.add(item.content.as_ref().map_or(&[][..], |(_, items)| items)),
                _ => {}
            }
        }
    }
}

/// Returns a text as a cell of a table; links of rustdoc are plain names there.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace("[`", "`").replace("`]", "`")
}

/// Returns the tables, and the number of errors.
fn tables() -> (String, usize) {
    let (mut page, mut count) = (String::new(), 0);
    for folder in FOLDERS {
        let mut crates: Vec<PathBuf> =
            std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        crates.sort();
        for path in crates {
            let mut sources = Vec::new();
            if path.join("src").is_dir() {
                add_sources(&path.join("src"), &mut sources);
            }
            let mut errors = Errors::default();
            for source in sources {
                let text = std::fs::read_to_string(&source).unwrap();
                let file =
                    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
                errors.add(&file.items);
            }
            for (name, rows) in &errors.enums {
                let crate_name = path.file_name().unwrap().to_string_lossy();
                write!(
                    page,
                    "\n## `{name}` of `{folder}/{crate_name}`\n\n| error | when | text |\n|---|---|---|\n"
                )
                .unwrap();
                for (variant, row) in rows {
                    let by_hand = errors.displays.get(name).and_then(|texts| texts.get(variant));
                    let text = by_hand.unwrap_or(&row.text);
                    writeln!(page, "| `{variant}` | {} | {} |", cell(&row.when), cell(text)).unwrap();
                    count += 1;
                }
            }
        }
    }
    (page, count)
}

#[test]
fn errors_page_lists_every_public_error() {
    let (tables, count) = tables();
    assert!(count > 100, "the sources have {count} errors only");
    let path = root().join(PAGE);
    let page = std::fs::read_to_string(&path).unwrap();
    let (introduction, listed) = page.split_once(BEGIN).unwrap();
    if std::env::var_os("UMF_BLESS").is_some() {
        std::fs::write(&path, format!("{introduction}{BEGIN}{tables}")).unwrap();
        return;
    }
    assert!(listed == tables, "{PAGE} differs from the sources; run this test with UMF_BLESS=1 to write it");
}
