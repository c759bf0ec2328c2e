//! A folder per test that replaces the system's folder, the user's folder and the working
//! directory.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::schema::schema;
use umf_config::{Context, Error, Loaded, Loader};

pub struct Sandbox {
    pub context: Context,
    root: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut context = Context::empty();
        context.user = Context::process().user;
        context.cwd = Some(root.path().join("cwd"));
        context.home = Some(root.path().join("home"));
        context.system = Some(root.path().join("etc"));
        let sandbox = Self { context, root };
        for file in [sandbox.system(), sandbox.user(), sandbox.cwd()] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        sandbox
    }

    pub fn system(&self) -> PathBuf {
        self.root.path().join("etc/umf/umf.toml")
    }

    pub fn user(&self) -> PathBuf {
        self.root.path().join("home/.config/umf/umf.toml")
    }

    pub fn cwd(&self) -> PathBuf {
        self.root.path().join("cwd/umf.toml")
    }

    /// Returns a sandbox whose user file contains `text`.
    pub fn with_file(text: &str) -> Self {
        let sandbox = Self::new();
        std::fs::write(sandbox.user(), text).unwrap();
        sandbox
    }

    /// Writes the working directory's file, with a mode that does not depend on the umask.
    pub fn write_cwd(&self, text: &str) {
        std::fs::write(self.cwd(), text).unwrap();
        self.set_mode_of_cwd(0o644);
    }

    /// Sets the mode of the working directory's file.
    pub fn set_mode_of_cwd(&self, mode: u32) {
        self.set_mode(&self.cwd(), mode);
    }

    /// Sets the mode of a file.
    pub fn set_mode(&self, path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.context = self.context.with_variable(name, value);
        self
    }

    pub fn loader(&self) -> Loader {
        Loader::with_context(self.context.clone())
    }

    pub fn load(&self) -> Result<Loaded, Error> {
        self.loader().load(schema())
    }

    /// Loads the settings, which must be valid.
    pub fn loaded(&self) -> Loaded {
        self.load().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Loads the settings, which must be invalid. Returns the text of the error.
    pub fn refusal(&self) -> String {
        self.load().unwrap_err().to_string()
    }

    /// Returns the text of the error as [`Sandbox::refusal`] does, without the folder of the user's
    /// file.
    pub fn text(&self) -> String {
        let folder = format!("{}/", self.user().parent().unwrap().display());
        self.refusal().replace(&folder, "")
    }
}
