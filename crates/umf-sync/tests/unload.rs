//! A library with umf in it that is closed (a plugin, say): threads that used it end in order.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "#[unsafe(no_mangle)]\n\
    pub extern \"C\" fn number() -> u32 { umf_sync::thread::current().map_or(u32::MAX, |own| own.get()) }\n";

/// The library, built in a package of its own. `None`, with a line that says why, where its
/// dependencies are not at hand.
fn built() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unload");
    std::fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"unload\"\nedition = \"2024\"\n[lib]\ncrate-type = [\"cdylib\"]\n\
         [dependencies]\numf-sync = {{ path = {own:?} }}\n[workspace]\n"
    );
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(package.join("src/lib.rs"), SOURCE).unwrap();
    // With the same versions, which are there.
    let _ = std::fs::copy(own.join("../../Cargo.lock"), package.join("Cargo.lock"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--target-dir"]).arg(package.join("target"));
    let output = cargo.current_dir(&package).env_remove("CARGO_BUILD_TARGET").output().unwrap();
    if !output.status.success() {
        println!("umf-skip: no library can be built: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(package.join("target/debug/libunload.so"))
}

#[test]
fn a_thread_that_used_a_closed_library_ends_in_order() {
    let Some(library) = built() else { return };
    let name = CString::new(library.as_os_str().as_bytes()).unwrap();
    let number = std::thread::spawn(move || {
        // SAFETY: what it runs when it is loaded may run at any time.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null());
        // SAFETY: the handle is open, and the name ends with a zero.
        let symbol = unsafe { libc::dlsym(handle, c"number".as_ptr()) };
        assert!(!symbol.is_null());
        // SAFETY: a function of this type.
        let number = unsafe { core::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u32>(symbol) }();
        // SAFETY: nothing of it is called here any more.
        assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        number
    });
    // The end of the thread is what this is about: a fault there ends the process.
    assert_eq!(number.join().unwrap(), 0);
    // SAFETY: the child ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}
