//! Installs the library once for all tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// An installed library.
pub struct Installed {
    pub prefix: PathBuf,
    /// What `install` printed on standard error.
    pub progress: String,
}

impl Installed {
    pub fn library(&self) -> PathBuf {
        self.prefix.join("lib/libumf.so.1")
    }

    /// Returns the headers to compile against: those of `UMF_PEER_HEADERS`, if set.
    pub fn headers(&self) -> PathBuf {
        std::env::var_os("UMF_PEER_HEADERS").map_or_else(|| self.prefix.join("include"), PathBuf::from)
    }
}

pub fn compiler() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".to_owned())
}

/// Returns the installed library. Prints a skip line and returns `None` without a C compiler.
pub fn installed(test: &str) -> Option<&'static Installed> {
    static INSTALLED: OnceLock<Option<Installed>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        Command::new(compiler()).arg("--version").output().ok().filter(|output| output.status.success())?;
        Some(install())
    });
    if installed.is_none() {
        println!("umf-skip: {test}: there is no C compiler ({})", compiler());
    }
    installed.as_ref()
}

fn install() -> Installed {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let prefix = folder.join("umf-capi");
    let profile = std::env::var("UMF_CAPI_PROFILE").unwrap_or_else(|_| "dev".to_owned());
    let mut install = Command::new(here.join("install"));
    install.arg(&prefix).arg(profile).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    if let Some(target) = folder.parent() {
        install.env("CARGO_TARGET_DIR", target);
    }
    let output = install.output().unwrap();
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{progress}");
    Installed { prefix, progress }
}
