//! `umf bench ipc`.

fn main() -> std::process::ExitCode {
    umf_benches::umf_bench("ipc")
}
