//! The grammar of `UMF_LOG`: `level:debug;flush:info;output:stderr;timestamp:yes;pid:no`.

use config::Value;

use crate::field::Section;
use crate::layer::Tree;
use crate::settings::Log;

/// What `UMF_LOG` may be.
pub(crate) const EXPECTED: &str = "parts separated by `;`, of which output is needed: output:stderr|stdout|file,<path>; \
     level:debug|info|warning|error|fatal; flush:<level>; timestamp:yes|no; pid:yes|no";

/// The keys of `[log]` that the text sets; `None` where it means nothing, or names no output: without
/// one logging stays as it was, as it always did.
pub(crate) fn parse(text: &str, uri: &String) -> Option<Tree> {
    let mut tree = Tree::new();
    for part in text.split(';').map(str::trim) {
        if part.is_empty() {
            continue;
        }
        let (name, value) = part.split_once(':')?;
        let field = Log::field(name.trim())?;
        let value = Value::new(Some(uri), value.trim());
        (field.set)(&mut Log::default(), &value)?;
        tree.insert(field.name.to_owned(), value);
    }
    tree.contains_key("output").then_some(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Option<Vec<String>> {
        let mut names: Vec<_> = parse(text, &String::new())?.into_keys().collect();
        names.sort();
        Some(names)
    }

    #[test]
    fn parts_set_keys_in_any_order() {
        let all = "level:debug; flush:info;output:file,/tmp/a:b;timestamp:yes;pid:no;";
        assert_eq!(names(all).unwrap(), ["flush", "level", "output", "pid", "timestamp"]);
        assert_eq!(names("output:stdout").unwrap(), ["output"]);
    }

    #[test]
    fn nothing_holds_without_an_output_or_with_a_part_that_means_nothing() {
        for text in
            ["level:debug", "", "output:printer", "output:stderr;level:loud", "debug", "x:y;output:stderr"]
        {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
