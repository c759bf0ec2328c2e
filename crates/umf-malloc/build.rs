//! Compiles the one thread-local word whose model only C can name on every machine, and has the library never be unloaded.

fn main() {
    println!("cargo::rerun-if-changed=c/busy.c");
    // Blocks, fork handlers and threads of its pool, and what libumf.so.1 knows of it, outlive a `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    cc::Build::new()
        .file("c/busy.c")
        .warnings(true)
        .flag("-std=gnu11")
        .flag("-fvisibility=hidden")
        .compile("umf_proxy_busy");
}
