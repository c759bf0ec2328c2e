//! `libumf_proxy.so` preloaded into C programs of this crate, and into programs that every Debian
//! has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod c_programs;
mod library;
mod programs;
mod settings;
