//! `umf bench pool`.

fn main() -> std::process::ExitCode {
    umf_benches::umf_bench("pool")
}
