//! Compares constants, layouts and tables with the specification's C header, if it is installed
//! (Debian: libze-dev).
//!
//! Definitions that an older header lacks are not compared. `TESTS_ZE_INCLUDE` names the folder of
//! another header, `level_zero/ze_api.h`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use level_zero_sys::layout;

struct Header {
    folder: PathBuf,
    /// All names in it.
    names: HashSet<String>,
    /// The version that it calls current.
    version: u32,
}

/// Reads the header. Without one, prints why the test is skipped.
fn header(test: &str) -> Option<Header> {
    let folder = PathBuf::from(std::env::var_os("TESTS_ZE_INCLUDE").unwrap_or("/usr/include".into()));
    let mut text = String::new();
    for file in ["ze_api.h", "ze_ddi.h"] {
        let path = folder.join("level_zero").join(file);
        match std::fs::read_to_string(&path) {
            Ok(read) => text.push_str(&read),
            Err(error) => {
                println!("umf-skip: {test}: {}: {error} (Debian: apt-get install libze-dev)", path.display());
                return None;
            }
        }
    }
    if Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("umf-skip: {test}: no C compiler (Debian: apt-get install gcc libc6-dev)");
        return None;
    }
    let names =
        text.split(|c: char| !(c.is_alphanumeric() || c == '_')).map(str::to_owned).collect::<HashSet<_>>();
    let minor = (0..100).rev().find(|minor| names.contains(&format!("ZE_API_VERSION_1_{minor}"))).unwrap();
    Some(Header { folder, names, version: level_zero_sys::make_version(1, minor) })
}

impl Header {
    /// Returns whether the header has as many definitions as expected: all, or more than half of
    /// them if it is older.
    fn is_complete(&self, known: usize, declared: usize) -> bool {
        known == declared || (self.version < level_zero_sys::ZE_API_VERSION_CURRENT.0 && known > declared / 2)
    }
}

/// Returns the values of C expressions, which a C program prints.
fn evaluate(header: &Header, expressions: &[String]) -> Vec<u64> {
    let mut program = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <level_zero/ze_api.h>\n#include <level_zero/ze_ddi.h>\nint main(void) {\n",
    );
    for expression in expressions {
        writeln!(program, "  printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    program.push_str("}\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compile = Command::new("cc");
    compile.arg("-I").arg(&header.folder).args([&source, Path::new("-o"), &binary]);
    assert!(compile.status().unwrap().success(), "the header compiles");
    let ran = Command::new(&binary).output().unwrap();
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn constants_match_the_header() {
    let Some(header) = header("constants_match_the_header") else { return };
    // The current version differs between headers.
    let known: Vec<_> = layout::constants()
        .filter(|(name, _)| header.names.contains(*name) && *name != "ZE_API_VERSION_CURRENT")
        .collect();
    // All but "current".
    let declared = layout::constants().count() - 1;
    assert!(
        header.is_complete(known.len(), declared),
        "{} of {declared} names are in the header",
        known.len()
    );
    let expected = evaluate(&header, &known.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>());
    for ((name, declared), expected) in known.iter().zip(expected) {
        assert_eq!(u64::from(*declared), expected, "{name}");
    }
}

#[test]
fn structures_match_the_header() {
    let Some(header) = header("structures_match_the_header") else { return };
    let known: Vec<_> =
        layout::structures().filter(|structure| header.names.contains(structure.name)).collect();
    let declared = layout::structures().count();
    assert!(
        header.is_complete(known.len(), declared),
        "{} of {declared} structures are in the header",
        known.len()
    );
    let mut expressions = Vec::new();
    let mut declared = Vec::new();
    for structure in known {
        expressions.push(format!("sizeof({})", structure.name));
        declared.push(structure.size);
        for (member, offset) in structure.members {
            expressions.push(format!("offsetof({}, {})", structure.name, member.trim_start_matches("r#")));
            declared.push(*offset);
        }
    }
    let expected = evaluate(&header, &expressions);
    for ((expression, declared), expected) in expressions.iter().zip(declared).zip(expected) {
        assert_eq!(declared as u64, expected, "{expression}");
    }
}

/// Members have the header's order. The header has the members of its version and earlier ones.
#[test]
fn tables_match_the_header() {
    let Some(header) = header("tables_match_the_header") else { return };
    let known: Vec<_> = layout::tables().filter(|table| header.names.contains(table.name)).collect();
    let declared = layout::tables().count();
    assert!(
        header.is_complete(known.len(), declared),
        "{} of {declared} tables are in the header",
        known.len()
    );
    let mut expressions = Vec::new();
    let mut declared = Vec::new();
    for table in known {
        assert!(header.names.contains(table.get.to_str().unwrap()), "{:?}", table.get);
        let members: Vec<_> =
            table.members.iter().filter(|member| member.since <= header.version).copied().collect();
        expressions.push(format!("sizeof({})", table.name));
        declared.push(members.len() * size_of::<usize>());
        for (index, member) in members.iter().enumerate() {
            assert!(header.names.contains(member.function.to_str().unwrap()), "{:?}", member.function);
            expressions.push(format!("offsetof({}, {})", table.name, member.name));
            declared.push(index * size_of::<usize>());
        }
    }
    let expected = evaluate(&header, &expressions);
    for ((expression, declared), expected) in expressions.iter().zip(declared).zip(expected) {
        assert_eq!(declared as u64, expected, "{expression}");
    }
}

/// Versions of members are ascending, so that the members of a version are a prefix of the table.
#[test]
fn members_are_ordered_by_version() {
    for table in layout::tables() {
        assert!(table.members.is_sorted_by_key(|member| member.since), "{}", table.name);
        assert!(table.members.iter().all(|member| member.since <= level_zero_sys::ZE_API_VERSION_CURRENT.0));
    }
}
