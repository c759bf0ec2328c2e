//! `umf.toml` and the environment: any text is settings or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use umf_config::{Context, Loader};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (file, variable) = text.split_once('\u{1}').unwrap_or((&text, "auto"));
    let folder = std::env::temp_dir().join(format!("umf-fuzz-{}", std::process::id()));
    let _ = std::fs::create_dir(&folder);
    let path = folder.join("umf.toml");
    if std::fs::write(&path, file).is_ok() {
        let context = Context::empty()
            .with_variable("UMF_TOML", &path)
            .with_variable("UMF_IPC_EXCHANGE", variable)
            .with_variable("UMF_LOG", variable);
        match Loader::with_context(context).load() {
            Ok(loaded) => drop(loaded.settings.report()),
            Err(error) => drop(error.to_string()),
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
});
