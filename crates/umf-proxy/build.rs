//! Compiles the one thread-local word whose model only C can name on every machine.

fn main() {
    println!("cargo::rerun-if-changed=c/busy.c");
    cc::Build::new()
        .file("c/busy.c")
        .warnings(true)
        .flag("-std=gnu11")
        .flag("-fvisibility=hidden")
        .compile("umf_proxy_busy");
}
