//! libumf.so.1 as C programs see it: what it exports, what it answers, and that two processes share memory through it.
//!
//! The library is built and installed by `install`, as anybody does it. With `UMF_PEER=/path/to/libumf.so.1` (and what that
//! needs in `LD_LIBRARY_PATH`) each program runs with the original as well, and has to say the same, but for the lines
//! that begin with `better`. With `UMF_PEER_HEADERS=/path/to/include` programs are compiled against the original's headers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod devices;
mod exports;
mod installed;
mod pools;
mod preloaded;
mod programs;
mod rights;
