//! Loads `umf.toml` and the environment. Any text gives settings or an error.

#![no_main]
#![allow(clippy::disallowed_methods, reason = "a fuzz target reads the environment as it is")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use umf::settings::Settings;
use umf::settings::{Context, Loader};

/// A file whose name is removed at once, so that the target leaves no file behind.
static FILE: LazyLock<File> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("umf-fuzz-{}.toml", std::process::id()));
    let file = File::create_new(&path).expect("a file in the folder for temporary files");
    std::fs::remove_file(&path).expect("the name can be removed");
    file
});

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (file, variable) = text.split_once('\u{1}').unwrap_or((&text, "auto"));
    let written = FILE.set_len(0).and_then(|()| FILE.write_all_at(file.as_bytes(), 0));
    written.expect("free space in the folder for temporary files");
    let context = Context::empty()
        .with_variable("UMF_TOML", format!("/proc/self/fd/{}", FILE.as_raw_fd()))
        .with_variable("UMF_IPC_EXCHANGE", variable)
        .with_variable("UMF_SET", variable)
        .with_variable("UMF_LOG", variable);
    match Settings::load(Loader::with_context(context)) {
        Ok(settings) => drop(settings.loaded().rows()),
        Err(error) => drop(error.to_string()),
    }
});
