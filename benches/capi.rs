//! `umf bench capi`, of a libumf.so.1 that is built for it.

fn main() -> std::process::ExitCode {
    umf_benches::umf_bench_capi(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")))
}
