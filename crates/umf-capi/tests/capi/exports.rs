//! Symbols and headers of the shared object.

use std::collections::BTreeMap;
use std::process::Command;

use object::elf;
use object::read::Object as _;
use object::read::elf::{
    Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _,
};

use crate::installed::{compiler, installed};

/// Returns names and versions from `c/libumf.map`.
fn listed() -> BTreeMap<String, String> {
    let map = include_str!("../../c/libumf.map");
    let mut names = BTreeMap::new();
    let mut version = "";
    for line in map.lines().map(str::trim) {
        if let Some(node) = line.strip_suffix('{') {
            version = node.trim();
        } else if let Some(name) = line.strip_suffix(';').filter(|name| name.starts_with("umf")) {
            names.insert(name.to_owned(), version.to_owned());
        }
    }
    names
}

/// Returns names and versions of the dynamic symbols of a shared object, and its soname.
fn exported(bytes: &[u8]) -> (BTreeMap<String, String>, Option<String>) {
    let file = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let endian = file.endian();
    let header = file.elf_header();
    let sections = header.sections(endian, bytes).unwrap();
    let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM).unwrap();
    let versions = sections.versions(endian, bytes).unwrap().unwrap();
    let mut names = BTreeMap::new();
    for (index, symbol) in symbols.enumerate() {
        let is_there = symbol.st_shndx(endian) != elf::SHN_UNDEF && symbol.st_bind() != elf::STB_LOCAL;
        // The version nodes are absolute symbols.
        if !is_there || symbol.st_shndx(endian) == elf::SHN_ABS {
            continue;
        }
        let name = String::from_utf8(symbols.symbol_name(endian, symbol).unwrap().to_vec()).unwrap();
        let version = versions.version(versions.version_index(endian, index).index()).unwrap();
        let version = version.map(|version| String::from_utf8_lossy(version.name()).into_owned());
        names.insert(name, version.unwrap_or_default());
    }
    let mut soname = None;
    for section in sections.iter() {
        if let Ok(Some((entries, link))) = section.dynamic(endian, bytes) {
            let strings = sections.strings(endian, bytes, link).unwrap();
            let entry = entries.iter().find(|entry| entry.d_tag(endian) == elf::DT_SONAME);
            soname = entry.map(|entry| {
                let name = strings.get(u32::try_from(entry.d_val(endian)).unwrap()).unwrap();
                String::from_utf8_lossy(name).into_owned()
            });
        }
    }
    (names, soname)
}

#[test]
fn it_exports_its_148_functions_and_nothing_else() {
    let Some(installed) = installed("it_exports_its_148_functions_and_nothing_else") else { return };
    let bytes = std::fs::read(installed.library()).unwrap();
    let (names, soname) = exported(&bytes);
    assert_eq!(names, listed());
    assert_eq!(names.len(), 148);
    let of = |version: &str| names.values().filter(|found| *found == version).count();
    assert_eq!((of("UMF_1.0"), of("UMF_1.1"), of("UMF_1.2"), of("UMFRS_1.0")), (132, 13, 1, 2));
    assert_eq!(soname.as_deref(), Some("libumf.so.1"));
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"UMF_IPC_EXCHANGE") && !has(b"UMF_FAILPOINTS"), "the feature failpoints is on");
}

#[test]
fn install_moves_debug_information_to_files_of_its_own() {
    const TEST: &str = "install_moves_debug_information_to_files_of_its_own";
    let Some(installed) = installed(TEST) else { return };
    if installed.progress.contains("the libraries keep their debug information") {
        println!("umf-skip: {TEST}: there is no objcopy (Debian: apt-get install binutils)");
        return;
    }
    let lib = installed.prefix.join("lib");
    for name in ["libumf.so.1.2.0", "libumf_proxy.so"] {
        let bytes = std::fs::read(lib.join(name)).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        assert!(file.section_by_name(".debug_line").is_none(), "{name}");
        let (link, _) = file.gnu_debuglink().unwrap().unwrap();
        assert_eq!(link, format!("{name}.debug").as_bytes());
        let bytes = std::fs::read(lib.join(".debug").join(format!("{name}.debug"))).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        assert!(file.section_by_name(".debug_line").is_some(), "{name}");
    }
}

#[test]
fn install_shows_its_steps() {
    let Some(installed) = installed("install_shows_its_steps") else { return };
    for part in
        ["== building libumf.a", "== linking libumf.so.1.2.0", "== building libumf_proxy.so", "Finished "]
    {
        assert!(installed.progress.contains(part), "{part}\nnot in {}", installed.progress);
    }
}

/// A library that is loaded at run time shares glibc's static TLS surplus, about 1600 bytes, with
/// all other such libraries.
#[test]
fn it_can_be_opened_once_a_program_runs() {
    let Some(installed) = installed("it_can_be_opened_once_a_program_runs") else { return };
    let bytes = std::fs::read(installed.library()).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let endian = file.endian();
    let storage = file.elf_program_headers().iter().filter(|header| header.p_type(endian) == elf::PT_TLS);
    let storage: u64 = storage.map(|header| header.p_memsz(endian)).sum();
    assert!(storage > 0 && storage <= 800, "{storage} bytes of thread-local storage");
    // SAFETY: loads the library as a program does. Its initialisers only register handlers.
    unsafe { libloading::Library::new(installed.library()) }.unwrap();
}

#[test]
fn the_peer_exports_the_same_but_for_the_functions_of_this_project() {
    let Some(peer) = std::env::var_os("UMF_PEER") else {
        println!(
            "umf-skip: the_peer_exports_the_same_but_for_the_functions_of_this_project: UMF_PEER does not name the original's libumf.so.1"
        );
        return;
    };
    let mut expected = listed();
    expected.retain(|name, _| !name.starts_with("umfrs"));
    assert_eq!(exported(&std::fs::read(peer).unwrap()).0, expected);
}

/// A header declares each exported function. Each header compiles on its own as C.
#[test]
fn the_headers_declare_what_is_exported() {
    let Some(installed) = installed("the_headers_declare_what_is_exported") else { return };
    let include = installed.prefix.join("include");
    let mut all = String::new();
    let mut headers = Vec::new();
    for folder in ["", "umf", "umf/experimental", "umf/pools", "umf/providers"] {
        for entry in std::fs::read_dir(include.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "h") {
                all.push_str(&std::fs::read_to_string(&path).unwrap());
                headers.push(path);
            }
        }
    }
    let missing: Vec<_> = listed().into_keys().filter(|name| !all.contains(&format!("{name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(headers.len(), 24);
    for header in headers {
        let mut check = Command::new(compiler());
        check
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-std=c11", "-x", "c"])
            .arg("-I")
            .arg(&include);
        let output = check.arg(&header).output().unwrap();
        assert!(output.status.success(), "{}: {}", header.display(), String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns each function that a header declares, with its parameters and the comment before it.
fn declared(header: &str) -> Vec<(String, Vec<String>, String)> {
    let mut found = Vec::new();
    let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let statements = header.split("/*").flat_map(|piece| {
        let (comment, code) = piece.split_once("*/").unwrap_or(("", piece));
        // The comment is that of the first statement after it.
        code.split(';').enumerate().map(move |(index, code)| (if index == 0 { comment } else { "" }, code))
    });
    for (comment, code) in statements {
        let Some((head, rest)) = code.split_once('(') else { continue };
        let name = head.rsplit(|char| !is_name(char)).next().unwrap();
        if code.contains("typedef") || code.contains('{') || !name.starts_with("umf") {
            continue;
        }
        let parameters = rest.rsplit_once(')').unwrap().0.split(',').map(str::trim);
        let parameters = parameters.filter(|text| !matches!(*text, "" | "void" | "..."));
        let last_word = |text: &str| text.rsplit(|char| !is_name(char)).next().unwrap().to_owned();
        found.push((name.to_owned(), parameters.map(last_word).collect(), comment.to_owned()));
    }
    found
}

#[test]
fn the_headers_describe_each_function_and_parameter() {
    let headers = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut folders = vec![headers];
    let (mut functions, mut missing) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            for (name, parameters, comment) in declared(&std::fs::read_to_string(&path).unwrap()) {
                functions += 1;
                if comment.trim().is_empty() {
                    missing.push(name.clone());
                }
                let is_missing = |parameter: &&String| !comment.contains(&format!("@param {parameter} "));
                missing.extend(parameters.iter().filter(is_missing).map(|what| format!("{name}: {what}")));
            }
        }
    }
    assert_eq!(functions, 148);
    assert!(missing.is_empty(), "{missing:#?}");
}
