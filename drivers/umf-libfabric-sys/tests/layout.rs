//! Compares constants, structures and tables with libfabric's C headers, if they are installed
//! (Debian: libfabric-dev).
//!
//! Definitions of later versions are not compared. `TESTS_LIBFABRIC_INCLUDE` names the folder of
//! other headers, `rdma/fabric.h`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libfabric_sys::layout::{self, Member};
use libfabric_sys::make_version;

const FILES: &[&str] = &[
    "fabric.h",
    "fi_atomic.h",
    "fi_cm.h",
    "fi_collective.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_eq.h",
    "fi_errno.h",
    "fi_rma.h",
    "fi_tagged.h",
    "providers/fi_log.h",
    "providers/fi_prov.h",
];

struct Headers {
    folder: PathBuf,
    version: u32,
}

/// Returns the folder of the headers that the machine's compiler uses.
fn installed() -> PathBuf {
    let pkg_config = Command::new("pkg-config").args(["--variable=includedir", "libfabric"]).output();
    let folder = pkg_config.ok().filter(|output| output.status.success());
    let folder = folder.and_then(|output| String::from_utf8(output.stdout).ok());
    folder.map_or("/usr/include".into(), |folder| folder.trim().into())
}

/// Finds the headers. Without any, prints why the test is skipped.
fn headers(test: &str) -> Option<Headers> {
    let folder = std::env::var_os("TESTS_LIBFABRIC_INCLUDE").map_or_else(installed, PathBuf::from);
    let path = folder.join("rdma/fabric.h");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            println!("umf-skip: {test}: {}: {error} (Debian: apt-get install libfabric-dev)", path.display());
            return None;
        }
    };
    if Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("umf-skip: {test}: no C compiler (Debian: apt-get install gcc libc6-dev)");
        return None;
    }
    let number = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let version = make_version(number("FI_MAJOR_VERSION"), number("FI_MINOR_VERSION"));
    assert!(version >= make_version(1, 17), "{} is older than 1.17", path.display());
    println!("libfabric {}.{} of {}", version >> 16, version & 0xffff, folder.display());
    Some(Headers { folder, version })
}

/// Returns the values of C expressions, which a C program prints.
fn evaluate(headers: &Headers, expressions: &[String]) -> Vec<u64> {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for file in FILES {
        writeln!(program, "#include <rdma/{file}>").unwrap();
    }
    program.push_str("int main(void) {\n");
    for expression in expressions {
        writeln!(program, "  printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    program.push_str("}\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let mut compile = Command::new("cc");
    // 2.x warns where deprecated names are used.
    compile.args(["-std=gnu11", "-w", "-I"]).arg(&headers.folder).args([&source, Path::new("-o"), &binary]);
    assert!(compile.status().unwrap().success(), "the headers compile");
    let ran = Command::new(&binary).output().unwrap();
    assert!(ran.status.success());
    String::from_utf8(ran.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

/// Evaluates each expression, and compares its value with the declared one.
#[track_caller]
fn compare(headers: &Headers, declared: &[(String, u64)]) {
    let expressions: Vec<_> = declared.iter().map(|(expression, _)| expression.clone()).collect();
    let expected = evaluate(headers, &expressions);
    assert_eq!(expected.len(), declared.len());
    let different: Vec<_> = declared
        .iter()
        .zip(expected)
        .filter(|((_, value), expected)| value != expected)
        .map(|((expression, value), expected)| format!("{expression} is {expected}, declared as {value}"))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn constants_match_the_headers() {
    let Some(headers) = headers("constants_match_the_headers") else { return };
    let known: Vec<_> = layout::constants()
        .filter(|constant| (constant.since..constant.until).contains(&headers.version))
        .map(|constant| (constant.name.to_owned(), constant.value))
        .collect();
    assert!(known.len() > 400, "{} constants", known.len());
    compare(&headers, &known);
}

/// Returns the size of a structure that ends with its last member of the version.
fn size(members: &[Member], align: usize) -> usize {
    members.iter().map(|member| member.offset + member.size).max().unwrap_or(0).next_multiple_of(align)
}

#[test]
fn structures_match_the_headers() {
    let Some(headers) = headers("structures_match_the_headers") else { return };
    let mut declared = Vec::new();
    let mut sizes = Vec::new();
    for structure in layout::structures().filter(|structure| structure.since <= headers.version) {
        let name = structure.name;
        let members: Vec<_> =
            structure.members.iter().filter(|member| member.since <= headers.version).copied().collect();
        for member in &members {
            let field = member.name.trim_start_matches("r#");
            declared.push((format!("offsetof(struct {name}, {field})"), member.offset as u64));
            declared.push((format!("sizeof(((struct {name} *)0)->{field})"), member.size as u64));
        }
        // Later members are at the end, and there is no padding that this crate alone has.
        let whole = size(structure.members, structure.align);
        assert!(structure.members.is_sorted_by_key(|member| (member.since, member.offset)), "{name}");
        assert_eq!(whole, structure.size, "{name}");
        sizes.push((name, size(&members, structure.align)));
    }
    // A structure with additions is declared twice, and the header has the largest one.
    for (name, _) in &sizes {
        let size = sizes.iter().filter(|(other, _)| other == name).map(|(_, size)| *size).max().unwrap();
        declared.push((format!("sizeof(struct {name})"), size as u64));
    }
    assert!(declared.len() > 500, "{} members", declared.len());
    compare(&headers, &declared);
}
