//! Every change of state that another process or the kernel sees has a step, at which the kill matrix ends processes.
//!
//! The sources are read: a function that makes a system call which is more than a question, writes to memory that is
//! shared, or has a provider do something, has a step in it; or a table says that its callers have one, or why none is
//! needed. So what is added later is either killed at, or shows up here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod scan;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use scan::Function;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The crates that are looked at. Those in `drivers/` declare functions of other libraries, or stand in for a device's driver in
/// tests, which the kill matrix does not watch either.
fn crates() -> Vec<String> {
    let mut found = Vec::new();
    for floor in ["crates", "providers", "pools"] {
        for entry in std::fs::read_dir(workspace().join(floor)).unwrap() {
            let name = format!("{floor}/{}", entry.unwrap().file_name().to_string_lossy());
            let other = tables::OTHER_CRATES.iter().any(|(other, _)| *other == name);
            if !other && workspace().join(&name).join("Cargo.toml").exists() {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// What a crate's tables say.
struct Rules<'a> {
    changes: Vec<&'a str>,
    passed_on: Vec<&'a str>,
    without: Vec<&'a str>,
}

impl Rules<'static> {
    fn of(name: &str) -> Self {
        let changes =
            tables::CHANGES.iter().filter(|(of, _)| *of == name).flat_map(|(_, list)| list.iter().copied());
        let passed_on = tables::PASSED_ON.iter().filter(|(of, _)| *of == name).map(|(_, function)| *function);
        let without =
            tables::WITHOUT.iter().filter(|(of, _, _)| *of == name).map(|(_, function, _)| *function);
        Self { changes: changes.collect(), passed_on: passed_on.collect(), without: without.collect() }
    }
}

/// A system call that changes something, if a path is one.
fn system_call(path: &str) -> Option<&str> {
    let names: Vec<&str> = path.split("::").collect();
    let [first, .., before, last] = names[..] else {
        return match names[..] {
            ["libc" | "rustix", last] => is_call(last).then_some(last),
            _ => None,
        };
    };
    let of_type = before.starts_with(char::is_uppercase);
    (matches!(first, "libc" | "rustix") && !of_type && is_call(last)).then_some(last)
}

fn is_call(name: &str) -> bool {
    name.starts_with(char::is_lowercase) && !tables::QUESTIONS.contains(&name)
}

/// What a function changes, by the names of what it uses.
fn changes(function: &Function, rules: &Rules<'_>) -> Vec<String> {
    let calls = function.uses.iter().filter_map(|used| system_call(used).map(str::to_owned));
    let named = rules.changes.iter().chain(&rules.passed_on).filter(|name| function.uses(name));
    let threads = function.uses.iter().filter(|used| used.ends_with(".spawn")).cloned();
    calls.chain(named.map(|name| (*name).to_owned())).chain(threads).collect()
}

/// What is wrong with a crate: functions without a step, and entries of tables that name nothing.
fn faults(functions: &[Function], rules: &Rules<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut used = BTreeSet::new();
    for function in functions {
        let changes = changes(function, rules);
        used.extend(changes.iter().cloned());
        if changes.is_empty() {
            continue;
        }
        let name = function.name.as_str();
        let listed = rules.passed_on.iter().chain(&rules.without).find(|listed| **listed == name);
        match listed {
            Some(listed) => {
                used.insert(format!("function {listed}"));
                if !function.failpoints.is_empty() && rules.without.contains(&name) {
                    faults.push(format!(
                        "{}: {name} has a step, and a table says that it has none",
                        function.file
                    ));
                }
            }
            None if function.failpoints.is_empty() => {
                faults.push(format!("{}: {name} uses {} and has no step", function.file, changes.join(", ")));
            }
            None => {}
        }
    }
    for listed in rules.passed_on.iter().chain(&rules.without) {
        if !used.contains(&format!("function {listed}")) {
            faults.push(format!("a table names {listed}, which is no function that changes anything"));
        }
    }
    for change in &rules.changes {
        if !used.contains(*change) {
            faults.push(format!("a table names {change}, which nobody uses"));
        }
    }
    faults
}

#[test]
fn every_change_of_state_has_a_step() {
    let mut all = Vec::new();
    for name in crates() {
        let functions = scan::folder(&workspace().join(&name).join("src"));
        assert!(!functions.is_empty(), "{name} has functions");
        all.extend(faults(&functions, &Rules::of(&name)).into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(all.is_empty(), "\n{}\n", all.join("\n"));
}

#[test]
fn every_failpoint_is_at_one_place() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for name in crates().into_iter().chain(["crates/umf-sync".to_owned()]) {
        for function in scan::folder(&workspace().join(&name).join("src")) {
            for failpoint in &function.failpoints {
                let place = format!("{name}: {} in {}", function.name, function.file);
                places.entry(failpoint.clone()).or_default().push(place);
            }
        }
    }
    assert!(places.contains_key("fork.prepared") && places.len() > 100, "{places:#?}");
    let wrong: Vec<_> = places.iter().filter(|(_, places)| places.len() != 1).collect();
    assert!(wrong.is_empty(), "failpoints at several places: {wrong:#?}");
}

#[test]
fn tables_name_crates_that_exist() {
    let crates = crates();
    let named = tables::CHANGES.iter().map(|(name, _)| *name);
    let named = named.chain(tables::PASSED_ON.iter().map(|(name, _)| *name));
    for name in named.chain(tables::WITHOUT.iter().map(|(name, _, _)| *name)) {
        assert!(crates.iter().any(|known| known == name), "{name}");
    }
    for (name, _) in tables::OTHER_CRATES {
        assert!(workspace().join(name).exists(), "{name}");
    }
}

/// The check finds what it is there for.
#[test]
fn a_change_without_a_step_is_found() {
    let rules = |passed_on, without| Rules { changes: vec!["protocol::retire"], passed_on, without };
    let check = |source: &str, rules: &Rules<'_>| {
        let faults = faults(&scan::text("it.rs", source), rules);
        faults
            .into_iter()
            .filter(|fault| !fault.contains("protocol::retire, which nobody"))
            .collect::<Vec<_>>()
    };
    let plain = rules(vec![], vec![]);
    for bare in [
        "fn f() { unsafe { rustix::mm::munmap(p, 1) }; }",
        "use rustix::mm::munmap; fn f() { munmap(p, 1); }",
        "use rustix::mm; fn f() { let g = || mm::munmap(p, 1); }",
        "use rustix::mm::{self, munmap as gone}; fn f() { assert_eq!(gone(p, 1), Ok(())); }",
        "struct S; impl Drop for S { fn drop(&mut self) { libc::munmap(p, 1); } }",
        "fn f() { list.iter().map(libc::close).count(); }",
        "fn f() { protocol::retire(word, 1); }",
        "mod inner { fn f() { std::thread::Builder::new().spawn(g); } }",
    ] {
        assert_eq!(check(bare, &plain).len(), 1, "{bare}");
        let with = bare
            .replace("fn f() {", "fn f() { failpoint!(\"gone\");")
            .replace("self) {", "self) { failpoint!(\"gone\");");
        assert_eq!(check(&with, &plain), Vec::<String>::new(), "{with}");
    }
    for fine in [
        "fn f() { rustix::process::getpid(); libc::MAP_SHARED; rustix::fs::MemfdFlags::empty(); }",
        "#[cfg(test)] mod tests { fn f() { libc::munmap(p, 1); } }",
    ] {
        assert_eq!(check(fine, &plain), Vec::<String>::new(), "{fine}");
    }
    // Passed on: the caller needs it then, in whatever form it calls.
    let wrapper = "mod sys { fn unmap() { libc::munmap(p, 1); } } use crate::sys; fn f() { sys::unmap(); }";
    assert_eq!(check(wrapper, &rules(vec!["sys::unmap"], vec![])).len(), 1);
    let inside = "mod sys { fn unmap() { libc::munmap(p, 1); } fn f() { unmap(); } }";
    assert_eq!(check(inside, &rules(vec!["sys::unmap"], vec![])).len(), 1);
    let method = "impl M { fn gone(self) { libc::munmap(p, 1); } } fn f() { mapping.gone(); }";
    assert_eq!(check(method, &rules(vec!["M::gone"], vec![])).len(), 1);
    assert_eq!(check(wrapper, &rules(vec![], vec!["sys::unmap"])), Vec::<String>::new());
    // Tables do not outlive what they name.
    assert_eq!(check("fn f() {}", &rules(vec![], vec!["sys::unmap"])).len(), 1);
}
