//! `umf info`, group "mpi": libfabric, umf's provider for it, and MPI libraries; and whether this
//! environment directs programs of these libraries to umf.

use std::ffi::{CStr, CString, OsStr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umf_os::environment::variable;

use super::finding::{Finding, Group, Question, ask};
use super::transfer::{CHILD_TIMEOUT, Role, run_in_child};
use crate::child::{self, ChildError};

/// The name of the provider's library in a folder of `FI_PROVIDER_PATH`.
const PROVIDER: &str = "libumf-fi.so";
/// The function by which libfabric enters a provider.
const PROVIDER_ENTRY: &CStr = c"fi_prov_ini";

/// The variables that direct Open MPI to umf.
const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_osc", "pt2pt"),
    ("OMPI_MCA_btl", "self"),
    ("OMPI_MCA_mtl_ofi_provider_include", "umf"),
];
/// The variables that direct MPICH to umf.
const MPICH: [(&str, &str); 3] =
    [("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", "umf")];

/// Looks for the libraries and programs.
pub(super) fn probe() -> Group {
    let (libfabric, provider) = libraries();
    let findings = vec![libfabric, provider, open_mpi(), mpich()];
    Group { key: "mpi", title: "MPI programs over umf (docs/mpi.md)", findings }
}

/// The reply of a child that opened the libraries: a library that is damaged ends only the child.
#[derive(Serialize, Deserialize)]
pub(super) struct LibraryReply {
    /// The version of libfabric, or the reason why there is none.
    libfabric: Result<(u32, u32), String>,
    /// The path of the provider and whether it can be loaded; `None` if there is none.
    provider: Option<(PathBuf, Result<(), String>)>,
}

/// Opens the libraries. Runs in a child.
pub(super) fn query_libraries() -> LibraryReply {
    // SAFETY: the dynamic linker finds the library by libfabric's name.
    let library = unsafe { libfabric_sys::Library::open(libfabric_sys::LIBRARY) };
    let version = library.map(|library| (library.version() >> 16, library.version() & 0xffff));
    let provider = provider_file(&variable("FI_PROVIDER_PATH").unwrap_or_default()).map(|path| {
        let opened = open_provider(&path);
        (path, opened)
    });
    LibraryReply { libfabric: version.map_err(|error| error.to_string()), provider }
}

/// Returns the provider's library in a value of `FI_PROVIDER_PATH`: folders between colons, an `@`
/// before the first one, and a `+` before the path of a library.
fn provider_file(path: &OsStr) -> Option<PathBuf> {
    let path = path.to_str()?;
    let path = path.strip_prefix('@').unwrap_or(path);
    path.split(':').filter(|part| !part.is_empty()).find_map(|part| {
        let file = part.strip_prefix('+').map_or_else(|| Path::new(part).join(PROVIDER), PathBuf::from);
        (file.ends_with(PROVIDER) && file.is_file()).then_some(file)
    })
}

fn open_provider(path: &Path) -> Result<(), String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: loading a library runs its initialisers, in a child that only reports on it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: the text of an error is null or ends with a zero.
        let text = unsafe {
            let text = libc::dlerror();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        return Err(text.unwrap_or_else(|| "it cannot be loaded".to_owned()));
    }
    // SAFETY: the library is loaded, and the name ends with a zero.
    let entry = unsafe { libc::dlsym(library, PROVIDER_ENTRY.as_ptr()) };
    if entry.is_null() { Err("it is no provider of libfabric".to_owned()) } else { Ok(()) }
}

fn libraries() -> (Finding, Finding) {
    let libfabric = ask("libfabric", "MPI libraries reach umf through it. PyPI's mpich contains its own.");
    let provider = ask(PROVIDER, "umf's provider of libfabric.");
    let reply = match run_in_child::<LibraryReply>(&Role::Libfabric) {
        Ok(reply) => reply,
        Err(error) => return (untried(libfabric, "a child", &error), untried(provider, "a child", &error)),
    };
    let libfabric = match reply.libfabric {
        Ok((major, minor)) => {
            let version = format!("{major}.{minor}");
            libfabric.ok(format!("{}, version {version}", libfabric_sys::LIBRARY)).value(version)
        }
        Err(why) => {
            let remedy = "Install it (Debian: libfabric1), unless programs use PyPI's mpich.";
            let is_absent = why.contains("No such file");
            libfabric.missing(if is_absent { "not found".to_owned() } else { why }, remedy).value(Value::Null)
        }
    };
    let provider = match reply.provider {
        Some((path, Ok(()))) => provider.ok(path.display().to_string()),
        Some((path, Err(why))) => {
            let remedy = "Build it again: `crates/umf-ofi/install FOLDER`.";
            provider.missing(format!("{} does not load: {why}", path.display()), remedy).value(Value::Null)
        }
        None => {
            let text = match variable("FI_PROVIDER_PATH") {
                Some(path) if !path.is_empty() => format!("not in FI_PROVIDER_PATH ({})", path.display()),
                _ => "FI_PROVIDER_PATH is not set".to_owned(),
            };
            let remedy = "Build it with `crates/umf-ofi/install \"$HOME/umf\"` in umf's sources, and run `export FI_PROVIDER_PATH=$HOME/umf`.";
            provider.missing(text, remedy).value(Value::Null)
        }
    };
    (libfabric, provider)
}

/// Returns the finding for a child or a program that did not answer.
pub(super) fn untried(question: Question, name: &str, error: &ChildError) -> Finding {
    let remedy = "Run again when the machine is less busy.";
    question.limited(format!("unknown: {name} {error}"), remedy).value(Value::Null)
}

fn open_mpi() -> Finding {
    let question = ask("open-mpi", "Its programs run over umf unchanged.");
    let missing = "Install it (Debian: openmpi-bin, libopenmpi-dev).";
    let found = match first_answer(&["mpirun.openmpi", "mpirun"], &["--version"], open_mpi_version) {
        Ok((program, version)) => Found { program, version },
        Err(Some((program, error))) => return untried(question, program, &error),
        Err(None) => return question.missing("not found", missing).value(Value::Null),
    };
    let components = find_program("ompi_info").and_then(|program| {
        child::output_of(&program, &["--parsable", "--param", "mtl", "ofi"], CHILD_TIMEOUT).ok()
    });
    if components.is_some_and(|text| !text.contains("mca:mtl:ofi:version")) {
        let remedy = "Install an Open MPI with libfabric (Debian's has it).";
        return question.missing(format!("{}, without libfabric", found.text()), remedy).value(found.version);
    }
    found.finding(question, &OPEN_MPI)
}

fn mpich() -> Finding {
    let question = ask("mpich", "Its programs run over umf unchanged, if it has libfabric.");
    let missing = "Install PyPI's: `pip install mpich`. Debian's cannot use umf.";
    let found = match first_answer(&["mpichversion"], &[], mpich_version) {
        Ok((program, (version, device))) if device.contains("ofi") => Found { program, version },
        Ok((program, (version, device))) => {
            let found = Found { program, version };
            let text = format!("{}, without libfabric (its device is {device})", found.text());
            return question.missing(text, missing).value(found.version);
        }
        Err(Some((program, error))) => return untried(question, program, &error),
        Err(None) => return question.missing("not found", missing).value(Value::Null),
    };
    found.finding(question, &MPICH)
}

/// A library of MPI that was found.
struct Found {
    program: PathBuf,
    version: String,
}

impl Found {
    fn text(&self) -> String {
        format!("{} ({})", self.version, self.program.display())
    }

    /// Reports whether the environment directs the library to umf.
    fn finding(self, question: Question, wanted: &[(&str, &str)]) -> Finding {
        // The list of Open MPI's providers may have others.
        let has = |(name, value): &&(&str, &str)| {
            variable(name).is_some_and(|set| set.to_string_lossy().split(',').any(|set| set == *value))
        };
        let (set, unset): (Vec<_>, Vec<_>) = wanted.iter().partition(has);
        let value = json!({ "version": self.version, "directed_to_umf": unset.is_empty() });
        if unset.is_empty() {
            return question.ok(format!("{}; directed to umf", self.text())).value(value);
        }
        let missing =
            unset.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
        let word = if set.is_empty() { "not" } else { "in part" };
        let text = format!("{}; {word} directed to umf by this environment", self.text());
        question.limited(text, format!("For programs over umf: `export {missing}`.")).value(value)
    }
}

/// Runs the first of these programs of which `read` understands the output. Fails with the last
/// error, or with `None` if there is no such program.
fn first_answer<'name, T>(
    names: &[&'name str],
    arguments: &[&str],
    read: impl Fn(&str) -> Option<T>,
) -> Result<(PathBuf, T), Option<(&'name str, ChildError)>> {
    let mut failed = None;
    for &name in names {
        let Some(program) = find_program(name) else { continue };
        match child::output_of(&program, arguments, CHILD_TIMEOUT) {
            Ok(text) => {
                if let Some(answer) = read(&text) {
                    return Ok((program, answer));
                }
            }
            Err(error) => failed = Some((name, error)),
        }
    }
    Err(failed)
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = variable("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Reads "mpirun.openmpi (OpenRTE) 4.1.4", or "mpirun (Open MPI) 5.0.3".
fn open_mpi_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("(OpenRTE)") || line.contains("(Open MPI)"))?;
    line.split_whitespace().last().map(str::to_owned)
}

/// Reads version and device: "MPICH Version:      5.0.2", "MPICH Device:       ch4:ucx ofi".
fn mpich_version(text: &str) -> Option<(String, String)> {
    let field = |name: &str| text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
    Some((field("MPICH Version:")?, field("MPICH Device:")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

    use super::*;

    #[test]
    fn versions_are_read() {
        let old = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n";
        assert_eq!(open_mpi_version(old).as_deref(), Some("4.1.4"));
        assert_eq!(open_mpi_version("mpirun (Open MPI) 5.0.3\n").as_deref(), Some("5.0.3"));
        assert_eq!(open_mpi_version("HYDRA build details:\n    Version: 5.0.2\n"), None);
        let text = "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\n";
        assert_eq!(mpich_version(text), Some(("5.0.2".to_owned(), "ch4:ucx ofi".to_owned())));
        assert_eq!(mpich_version("MPICH Version: 5.0.2\n"), None);
    }

    #[test]
    fn provider_is_found_in_each_form_of_the_path() {
        let folder = std::env::temp_dir().join(format!("umf-info-mpi-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join(PROVIDER);
        std::fs::write(&file, "").unwrap();
        let folder_text = folder.display().to_string();
        for path in [
            "D",
            "@D",
            "/nonexistent:D",
            "@/nonexistent:D:/tmp",
            "+D/libumf-fi.so",
            "/nonexistent:+D/libumf-fi.so",
        ] {
            let path = path.replace('D', &folder_text);
            assert_eq!(provider_file(OsStr::new(&path)), Some(file.clone()), "{path}");
        }
        for path in ["", "@", ":", "/nonexistent", "+/nonexistent/libumf-fi.so"] {
            assert_eq!(provider_file(OsStr::new(path)), None, "{path}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
