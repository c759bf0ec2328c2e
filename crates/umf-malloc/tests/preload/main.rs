//! `libumf_proxy.so` in other programs: C programs of this folder, and what every Debian has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod c_programs;
mod library;
mod programs;
mod settings;
