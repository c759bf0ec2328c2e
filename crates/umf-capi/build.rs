//! Compiles the C functions with variable arguments.

fn main() {
    println!("cargo::rerun-if-changed=c/variadic.c");
    cc::Build::new()
        .file("c/variadic.c")
        .warnings(true)
        .flag("-std=c11")
        .flag("-fvisibility=hidden")
        .compile("umf_capi_variadic");
}
