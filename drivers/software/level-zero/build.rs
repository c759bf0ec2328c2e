//! The driver stays where it is once it is loaded: loaders close drivers when a process ends, while
//! threads still run in them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
