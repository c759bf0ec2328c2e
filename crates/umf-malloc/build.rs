//! Compiles the thread-local word of `reentrancy`, whose TLS model only C can select on every
//! machine, and links the library such that `dlclose` does not unload it.

fn main() {
    println!("cargo::rerun-if-changed=c/busy.c");
    // Live blocks, fork handlers, threads of the pool and the pointers in libumf.so.1 outlive a
    // `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    cc::Build::new()
        .file("c/busy.c")
        .warnings(true)
        .flag("-std=gnu11")
        .flag("-fvisibility=hidden")
        .compile("umf_proxy_busy");
}
