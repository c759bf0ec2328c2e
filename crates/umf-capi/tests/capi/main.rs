//! Tests of `libumf.so.1` through C programs: exports, results, and memory shared by two processes.
//!
//! `install` builds and installs the library, as users do. With `UMF_PEER=/path/to/libumf.so.1`,
//! and its dependencies in `LD_LIBRARY_PATH`, each program also runs with the original library. The
//! outputs must be equal, except for lines that begin with `better`. With
//! `UMF_PEER_HEADERS=/path/to/include` programs are compiled against the original's headers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod devices;
mod errors;
mod examples;
mod exports;
mod installed;
mod pools;
mod preloaded;
mod programs;
mod rights;
mod rust_handles;
