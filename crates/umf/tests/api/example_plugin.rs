//! `examples/plugin`, built for the tests that load it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A folder of this test run.
pub fn folder() -> PathBuf {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plugin-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    });
    FOLDER.clone()
}

pub fn ran(command: &mut Command) -> bool {
    let output = command.output().unwrap();
    if !output.status.success() {
        println!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

pub fn set_mode_of(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// `examples/plugin`, built as its reader would.
pub fn example() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugin/Cargo.toml");
        // One folder for all runs: cargo locks it, and builds only what changed.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example-plugin");
        let build = |offline: &[&str]| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--manifest-path"]).arg(&manifest);
            ran(cargo.arg("--target-dir").arg(&target).args(offline).env_remove("CARGO_BUILD_TARGET"))
        };
        assert!(build(&["--offline"]) || build(&[]), "examples/plugin does not build");
        // A copy, whose permissions do not depend on the umask.
        let copy = folder().join("libexample.so");
        fs::copy(target.join("debug/libumf_example_plugin.so"), &copy).unwrap();
        set_mode_of(&copy, 0o755);
        copy
    });
    BUILT.clone()
}
